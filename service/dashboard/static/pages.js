// What all pages share: questions before what cannot be undone, copying, local times, and parts that are read again.
document.documentElement.classList.add("scripted");
document.addEventListener("click", event => {  // of the document: buttons come anew with parts that are read again
  const button = event.target.closest?.("[data-confirm]");
  if (button && !confirm(button.dataset.confirm)) event.preventDefault();
});

// What is said of a field holds until the field is changed; the list of faults above says no more than the fields do.
document.addEventListener("input", ({ target }) => {
  const name = (target.name || "").replace(/_other$/, "");
  for (const field of [target.closest(".wrong"), document.getElementById(`f-${name}`)?.closest(".wrong")]) {
    if (!field) continue;
    field.classList.remove("wrong");
    for (const one of [field, ...field.querySelectorAll("[aria-invalid]")]) one.removeAttribute("aria-invalid");
    field.querySelector(".hint .bad")?.remove();
  }
  const faults = document.getElementById("faults");
  for (const link of faults?.querySelectorAll("li a") ?? []) if (link.getAttribute("href") === `#f-${name}`) link.closest("li").remove();
  if (faults && !faults.querySelector("li")) faults.remove();
});

// A session that has ended answers with the page to sign in, or with 401. It is said here, and nothing of the answer is
// shown: scripts of single pages ask this of every answer.
const root = document.querySelector("meta[name=root]").content;
globalThis.signedOut = answer => {
  const asked = answer?.redirected && new URL(answer.url).pathname === `${root}/sign-in`;
  if (!asked && answer?.status !== 401) return false;
  if (document.getElementById("signed-out")) return true;
  const told = Object.assign(document.createElement("p"), { id: "signed-out", className: "finding critical" });
  const here = location.pathname.slice(root.length) + location.search;
  const link = Object.assign(document.createElement("a"), { href: `${root}/sign-in?next=${encodeURIComponent(here)}`, textContent: "Sign in" });
  told.setAttribute("role", "alert");
  told.append("Your session has ended. ", link);
  document.getElementById("content").prepend(told);
  return true;
};
// A page, or a part of one, that is shown in this one; null where there is none.
globalThis.pageOf = async (url, options) => {
  const answer = await fetch(url, options).catch(() => null);
  if (!answer || signedOut(answer) || answer.redirected) return null;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  return { ok: answer.ok, status: answer.status, page };
};

// What was copied is said in one place for those who do not see the button.
const said = Object.assign(document.createElement("p"), { className: "unseen", role: "status" });
document.body.append(said);
const copied = async text => {
  try { return await navigator.clipboard.writeText(text); } catch { /* not over plain HTTP, or not allowed: as below */ }
  const area = Object.assign(document.createElement("textarea"), { value: text, className: "unseen", readOnly: true });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser does not let pages copy");
};
document.addEventListener("click", async event => {
  const button = event.target.closest?.("[data-copy]");
  if (!button) return;
  const word = await copied(button.dataset.copy).then(() => "Copied", () => "Not copied");
  const before = button.dataset.word ??= button.textContent;
  button.textContent = said.textContent = word;
  button.focus();
  setTimeout(() => { button.textContent = before; said.textContent = ""; }, 2000);
});

// Moments come in UTC; they are shown in local time, with UTC in their title.
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const zoneHere = Intl.DateTimeFormat().resolvedOptions().timeZone;
const localize = () => {
  for (const one of document.querySelectorAll("[data-local-zone]")) {
    one.textContent = `(${zoneHere})`;
    delete one.dataset.localZone;
  }
  for (const time of document.querySelectorAll("time[data-local], time[data-ago]")) {
    const at = new Date(time.dateTime);
    if ("local" in time.dataset) {
      time.title = time.textContent;
      time.textContent = clock.format(at);
    } else {
      time.title = `${zoned.format(at)} (${time.title})`;
      time.dataset.since = "";
    }
    delete time.dataset.local;
    delete time.dataset.ago;
  }
};
localize();

// "5 min ago" grows while the page is open; the words are those of the server.
const ago = at => {
  const seconds = (Date.now() - at) / 1000, distance = Math.abs(seconds);
  const [unit, length] = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]].find(([, one]) => distance >= one) ?? ["s", 1];
  const words = `${Math.round(distance / length)} ${unit}`;
  return seconds >= 0 ? `${words} ago` : `in ${words}`;
};
setInterval(() => {
  for (const time of document.querySelectorAll("time[data-since]")) {
    const words = ago(new Date(time.dateTime));
    if (time.textContent !== words) time.textContent = words;
  }
}, 5000);
new MutationObserver(localize).observe(document.getElementById("content"), { childList: true, subtree: true });

// A new schedule runs in the time zone of whoever makes it.
const zone = document.querySelector("[data-zone]");
if (zone) zone.value = zoneHere || zone.value;

// What a schedule's cron expression means, while it is typed.
const reading = document.querySelector("[data-reading]");
if (reading) {
  let turn = 0;
  const form = reading.closest("form"), { cron, timezone } = form.elements;
  const read = async () => {
    const mine = ++turn;
    await new Promise(done => setTimeout(done, 300));
    if (mine !== turn) return;
    const query = new URLSearchParams({ cron: cron.value, timezone: timezone.value });
    const answer = await pageOf(`${reading.dataset.reading}?${query}`);
    if (mine === turn && answer?.ok) reading.replaceChildren(...answer.page.body.childNodes);
  };
  form.addEventListener("input", ({ target }) => { if (target === cron || target === timezone) read(); });
  if (zone) read();
}

// The baseline is one of the compared jobs.
document.getElementById("choose")?.addEventListener("change", ({ target }) => {
  const row = target.closest("tr"), [ticked, baseline] = row.querySelectorAll("input");
  if (target === baseline) ticked.checked = true;
  if (target === ticked && !ticked.checked) baseline.checked = false;
});

const again = document.querySelector("[data-refresh]");
if (again) {
  // What somebody has typed is not taken from them.
  const typed = () => [...again.querySelectorAll("input, textarea")].some(one => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
  const refresh = async () => {
    if (document.hidden || typed()) return;
    const answer = await pageOf(location.href, { headers: { Accept: "text/html" } });
    if (!answer?.ok) return;
    const fresh = answer.page.querySelector("[data-refresh]");
    if (!fresh) return location.reload();  // what was waited for has ended: the page is another one now
    if (!again.contains(document.activeElement)) again.replaceChildren(...fresh.childNodes);
  };
  setInterval(refresh, 1000 * Number(again.dataset.refresh));
}
