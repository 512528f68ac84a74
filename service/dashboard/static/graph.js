// The drawing of a graph: moved by drag and arrow keys, zoomed by wheel, buttons and keys; nodes told without a reload.
const frame = document.getElementById("frame"), picture = frame.querySelector("svg.graph");
const tools = document.getElementById("tools"), panel = document.getElementById("node");
const WHOLE = picture.viewBox.baseVal, width = WHOLE.width, height = WHOLE.height;
// Below READABLE the texts of a box cannot be read.
const READABLE = 0.7, MOST = 3, STEP = 1.25, KEY_PIXELS = 80, DRAG_PIXELS = 4;
let x = 0, y = 0, scale = 1;  // left upper corner that is seen, in units of the drawing; pixels for each unit

const least = () => Math.min(frame.clientWidth / width, frame.clientHeight / height, 1);
const show = () => {
  const wide = frame.clientWidth / scale, tall = frame.clientHeight / scale;
  x = wide >= width ? (width - wide) / 2 : Math.min(Math.max(x, 0), width - wide);
  y = tall >= height ? Math.min(0, (height - tall) / 2) : Math.min(Math.max(y, 0), height - tall);
  picture.setAttribute("viewBox", `${x} ${y} ${wide} ${tall}`);
};
const zoom = (factor, atX = frame.clientWidth / 2, atY = frame.clientHeight / 2) => {
  const next = Math.min(Math.max(scale * factor, least()), MOST);
  x += atX / scale - atX / next;
  y += atY / scale - atY / next;
  scale = next;
  show();
};
const reveal = (box, always) => {  // a box that has the focus is never out of sight
  const { x: left, y: top, width: wide, height: tall } = box.querySelector(".back").getBBox();
  const seenWide = frame.clientWidth / scale, seenTall = frame.clientHeight / scale;
  const inside = left >= x && top >= y && left + wide <= x + seenWide && top + tall <= y + seenTall;
  if (inside && !always) return;
  x = left + wide / 2 - seenWide / 2;
  y = top + tall / 2 - seenTall / 2;
  show();
};

const fit = () => {  // the whole, or, where nobody could read it then, its width around what is chosen
  const whole = least();
  scale = whole >= READABLE ? whole : Math.max(READABLE, Math.min(1, frame.clientWidth / width));
  x = (width - frame.clientWidth / scale) / 2;
  y = 0;
  const chosen = picture.querySelector(".chosen");
  if (chosen) reveal(chosen, true); else show();
};

const views = { in: () => zoom(STEP), out: () => zoom(1 / STEP), fit, real: () => zoom(1 / scale) };
const KEYS = {
  "+": views.in, "=": views.in, "-": views.out, "0": views.fit, "1": views.real,
  ArrowLeft: () => { x -= KEY_PIXELS / scale; show(); }, ArrowRight: () => { x += KEY_PIXELS / scale; show(); },
  ArrowUp: () => { y -= KEY_PIXELS / scale; show(); }, ArrowDown: () => { y += KEY_PIXELS / scale; show(); },
};
tools.hidden = false;
tools.addEventListener("click", event => views[event.target.dataset.view]?.());
frame.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
});
frame.addEventListener("wheel", event => {
  event.preventDefault();
  const edge = frame.getBoundingClientRect();
  zoom(STEP ** (-Math.sign(event.deltaY)), event.clientX - edge.left, event.clientY - edge.top);
}, { passive: false });

const fingers = new Map();
let moved = 0;
frame.addEventListener("pointerdown", event => {
  if (event.button) return;
  if (!fingers.size) moved = 0;
  fingers.set(event.pointerId, event);
});
frame.addEventListener("pointermove", event => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
  moved += Math.abs(dx) + Math.abs(dy);
  if (moved <= DRAG_PIXELS) return;
  if (!frame.classList.contains("dragged")) { frame.classList.add("dragged"); frame.setPointerCapture(event.pointerId); }
  const other = [...fingers.values()].find(one => one.pointerId !== event.pointerId);
  fingers.set(event.pointerId, event);
  if (other) {  // two fingers: the distance between them
    const far = one => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
    const edge = frame.getBoundingClientRect();
    return zoom(far(event) / far(before), (event.clientX + other.clientX) / 2 - edge.left, (event.clientY + other.clientY) / 2 - edge.top);
  }
  x -= dx / scale;
  y -= dy / scale;
  show();
});
const released = event => { fingers.delete(event.pointerId); if (!fingers.size) frame.classList.remove("dragged"); };
for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) frame.addEventListener(name, released);
frame.addEventListener("dragstart", event => event.preventDefault());
frame.addEventListener("click", event => {  // the end of a drag is no click
  if (event.detail && moved > DRAG_PIXELS) { event.preventDefault(); event.stopPropagation(); }
}, true);
frame.addEventListener("focusin", event => { const box = event.target.closest("a.box, a.pair"); if (box?.matches(":focus-visible")) reveal(box); });

const address = box => box.getAttribute("href");
const nodeOf = url => new URL(url, location.href).searchParams.get("node");
const boxOf = node => [...picture.querySelectorAll("a.box[data-node]")].find(box => nodeOf(address(box)) === node);
const mark = chosen => {
  for (const box of picture.querySelectorAll(".chosen")) { box.classList.remove("chosen"); box.removeAttribute("aria-current"); }
  if (chosen) { chosen.classList.add("chosen"); chosen.setAttribute("aria-current", "true"); }
};
let asked = 0, before = location.search;
const tell = async (url, { kept = false } = {}) => {
  const mine = ++asked, box = boxOf(nodeOf(url));
  panel.setAttribute("aria-busy", "true");
  const answer = await pageOf(url, { headers: { Accept: "text/html" } });
  if (mine !== asked) return;
  panel.removeAttribute("aria-busy");
  const fresh = answer?.ok && answer.page.getElementById("node");
  if (!fresh) { location.assign(url); return; }
  panel.replaceChildren(...fresh.childNodes);
  mark(box);
  if (kept) return;
  history.pushState(null, "", url);
  before = location.search;
  panel.focus();
};
document.addEventListener("click", event => {
  const link = event.target.closest("a[data-node]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
  const box = boxOf(nodeOf(address(link)));
  if (!box) return;  // within a group: the page that opens it
  event.preventDefault();
  if (!picture.contains(link)) reveal(box);
  tell(new URL(address(link), location.href).href);
});
addEventListener("popstate", () => {
  if (location.search === before) return;
  before = location.search;
  const node = nodeOf(location.href);
  if (!node || !boxOf(node)) location.reload(); else tell(location.href, { kept: true });
});

frame.classList.add("live");
new ResizeObserver(show).observe(frame);
fit();
