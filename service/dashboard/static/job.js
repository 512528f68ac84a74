// A job's page while it runs: stage, share, log and curves by the event stream; at its end, the page once more.
const root = document.querySelector("meta[name=root]").content;
const job = document.getElementById("job");
const stage = document.getElementById("stage"), left = document.getElementById("left");
const bar = document.querySelector("#meter progress"), tail = document.getElementById("tail");
const KEPT_LINES = 200;
const lines = tail.textContent.trim() ? tail.textContent.trim().split("\n") : [];

const span = seconds => seconds < 60 ? `${Math.round(seconds)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;

const progressed = ({ stage: name, done, total, unit, message, share, seconds_left: rest }) => {
  const count = total ? ` ${done}/${total} ${unit}` : done ? ` ${done} ${unit}` : "";
  stage.textContent = `${name || ""}${count}${message ? `: ${message}` : ""}`;
  if (typeof share === "number") bar.value = share; else bar.removeAttribute("value");
  left.textContent = typeof rest === "number" ? `about ${span(rest)} left` : "";
};

let asked = null;
const drawn = () => {  // the server draws all curves; many figures in a row are drawn once
  asked ??= setTimeout(async () => {
    asked = null;
    const answer = await fetch(`${root}/jobs/${job.dataset.id}/curves`).catch(() => null);
    if (!answer || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
    if (fresh) document.getElementById("live").replaceChildren(...fresh.childNodes);
  }, 1500);
};

const source = new EventSource(`${root}/v1/jobs/${job.dataset.id}/events?after=${job.dataset.after}`);
source.addEventListener("progress", event => progressed(JSON.parse(event.data).data));
source.addEventListener("metric", drawn);
source.addEventListener("log", event => {
  const { created_at: at, data } = JSON.parse(event.data);
  lines.push(`${at.slice(11, 19)} ${(data.level || "info").toUpperCase()} ${data.message}`);
  tail.textContent = lines.slice(-KEPT_LINES).join("\n");
  tail.scrollTop = tail.scrollHeight;
});
source.addEventListener("state", event => {
  const { data } = JSON.parse(event.data);
  if (data.state) document.getElementById("state").textContent = data.state;
});
source.addEventListener("end", () => { source.close(); location.reload(); });
