// A job's page while it runs: stage, share, log and curves by the event stream; at its end, the page once more.
const root = document.querySelector("meta[name=root]").content;
const job = document.getElementById("job");
const stage = document.getElementById("stage"), left = document.getElementById("left");
const bar = document.querySelector("#meter progress"), tail = document.getElementById("tail");
// Before so much is done, the time left is a guess.
const KEPT_LINES = 200, KNOWN_SHARE = 0.05;
const lines = tail.textContent.trim() ? tail.textContent.trim().split("\n") : [];

const span = seconds => seconds < 60 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;

const progressed = ({ stage: name, done, total, unit, message, share, seconds_left: rest }) => {
  const count = total ? ` ${done}/${total} ${unit}` : done ? ` ${done} ${unit}` : "";
  stage.textContent = `${name || ""}${count}${message ? `: ${message}` : ""}`;
  if (typeof share === "number") bar.value = share; else bar.removeAttribute("value");
  left.textContent = typeof rest === "number" && share >= KNOWN_SHARE ? `about ${span(rest)} left` : "";
};

// Marks and words of states come from the server, so that there is one table of them.
const made = (kind, key) => {
  const found = document.getElementById(kind).content.querySelector(`[data-of="${CSS.escape(key)}"]`);
  return found ? [...found.cloneNode(true).childNodes] : [document.createTextNode(key)];
};
const element = (name, text, kind) => Object.assign(document.createElement(name), { textContent: text, className: kind || "" });

const stages = document.getElementById("stages");
const marked = (item, key) => {
  item.className = key;
  const hint = item.querySelector(".hint"), [, done, total, unit] = /^(\d+)\/(\d+)(.*)$/.exec(hint.textContent) || [];
  if (key === "done" && total) hint.textContent = done === total ? `${total}${unit}` : "";
  item.querySelector(".mark")?.remove();
  item.prepend(...made("marks", key));
};
const early = document.getElementById("early");
const staged = ({ stage: name, done, total, unit, message }, attempt) => {
  if (!name) return;
  if (name === "result") {  // the summary of the report, told while advice is still tried
    early.querySelector("p").textContent = message;
    early.hidden = false;
    return;
  }
  if (String(attempt) !== stages.dataset.attempt) {
    stages.dataset.attempt = attempt;
    stages.replaceChildren();
  }
  let item = [...stages.children].find(one => one.dataset.stage === name);
  if (!item) {
    item = document.createElement("li");
    item.dataset.stage = name;
    item.append(element("bdi", name), " ", element("span", "", "hint"));
    stages.append(item);
  }
  for (const one of stages.children) if (one !== item && one.className !== "done") marked(one, "done");
  if (item.className !== "now") marked(item, "now");
  item.querySelector(".hint").textContent = total ? `${done}/${total} ${unit}` : done ? `${done} ${unit}` : "";
};

const changed = ({ created_at: at, attempt, data }) => {
  const moment = `${at.slice(0, 10)} ${at.slice(11, 19)} UTC`;  // pages.js turns it into local time
  const words = [data.name, data.reason, data.error && data.error.title].filter(Boolean).join(", ");
  const item = document.createElement("li"), time = element("time", moment);
  time.dateTime = at;
  time.dataset.local = "";
  item.append(time, " ", ...made("states", data.state), " ", element("span", [attempt > 1 ? `attempt ${attempt}` : "", words].filter(Boolean).join(", "), "hint"));
  document.getElementById("timeline").append(item);
  document.getElementById("state").replaceChildren(...made("states", data.state));
};

let asked = null;
const drawn = () => {  // the server draws all curves; many figures in a row are fetched once, and none that nobody sees
  asked ??= setTimeout(async () => {
    asked = null;
    if (document.hidden) return document.addEventListener("visibilitychange", drawn, { once: true });
    const fresh = (await pageOf(`${root}/jobs/${job.dataset.id}/curves`))?.page.getElementById("live");
    if (fresh) document.getElementById("live").replaceChildren(...fresh.childNodes);
  }, 2500);
};

const source = new EventSource(`${root}/v1/jobs/${job.dataset.id}/events?after=${job.dataset.after}`);
source.addEventListener("progress", event => {
  const { attempt, data } = JSON.parse(event.data);
  progressed(data);
  staged(data, attempt);
});
source.addEventListener("metric", drawn);
// The browser tries again by itself unless it was refused: what with, the answer to another request says.
source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) drawn(); });
source.addEventListener("log", event => {
  const { created_at: at, attempt, data } = JSON.parse(event.data);
  lines.push(`${new Date(at).toISOString()} ${attempt} ${(data.level || "info").toUpperCase()} ${data.message}`);
  tail.textContent = lines.slice(-KEPT_LINES).join("\n");
  tail.scrollTop = tail.scrollHeight;
});
source.addEventListener("state", event => {
  const told = JSON.parse(event.data);
  if (told.data.state) changed(told);
});
// A page that is left for the answer to a form is not loaded once more: that would break its request off.
let leaving = false;
addEventListener("submit", event => { leaving = !event.defaultPrevented; });
addEventListener("pageshow", () => { leaving = false; });
source.addEventListener("end", () => { source.close(); if (!leaving) location.reload(); });
