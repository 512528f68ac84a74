// The form of a new job: files are sent in parts that can be gone on with, and form and JSON follow one another.
const root = document.querySelector("meta[name=root]").content;
const guard = document.querySelector("meta[name=csrf]")?.content;
const form = document.getElementById("new");
const PART_BYTES = 8 * 1024 * 1024, MOST_BREAKS = 8;
const pause = seconds => new Promise(done => setTimeout(done, 1000 * seconds));

const ask = (path, options = {}) => {
  const headers = { ...(options.body && !(options.body instanceof Blob) ? { "Content-Type": "application/json" } : {}), ...options.headers };
  if (guard) headers["X-CSRF-Token"] = guard;
  return fetch(root + path, { ...options, headers });
};
const sentence = text => {
  const said = text.replace(/^(the|no|a|an) /, word => word[0].toUpperCase() + word.slice(1));
  return /[.!?]$/.test(said) ? said : `${said}.`;
};
// The API speaks of the fields of a request, and where they are described; here a file was chosen.
const told = ({ detail, hint, errors }) => {
  const said = (errors ?? []).reduce((text, { pointer, message }) => text.replace(`${pointer}: ${message}`, message), detail);
  const then = hint?.replace("The schema is at /docs.", "").replace(/^Set format: /, "Allowed file types: ");
  return [said, then].filter(Boolean).map(sentence).join(" ");
};
const answered = async answer => {
  if (signedOut(answer)) throw new Error("Your session has ended.");
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told({ ...body, detail: body.detail || `The service answered ${answer.status}.` }));
  return body;
};
const post = async (path, body, headers) => answered(await ask(path, { method: "POST", body: JSON.stringify(body), headers }));

// Sends a file; after a break the service tells how far it has come.
const upload = async (file, kind, told) => {
  const { id } = await post("/v1/uploads", { filename: file.name, size_bytes: file.size, kind });
  let offset = 0, breaks = 0;
  while (offset < file.size) {
    told(offset / file.size);
    const part = file.slice(offset, offset + PART_BYTES);
    const answer = await ask(`/v1/uploads/${id}`, {
      method: "PATCH", body: part, headers: { "Upload-Offset": String(offset), "Content-Type": "application/octet-stream" },
    }).catch(() => null);
    if (answer?.ok) { offset = Number(answer.headers.get("Upload-Offset")); breaks = 0; continue; }
    if (answer && ![408, 409, 423, 429].includes(answer.status) && answer.status < 500) await answered(answer);
    if (++breaks > MOST_BREAKS) throw new Error("The connection broke too often. Choose the file again to retry.");
    await pause(Math.min(2 ** breaks, 30));
    const seen = await ask(`/v1/uploads/${id}`, { method: "HEAD" }).catch(() => null);
    if (seen?.ok) offset = Number(seen.headers.get("Upload-Offset"));
  }
  told(1);
  return id;
};

const ready = async (path, words) => {
  for (;;) {
    const resource = await answered(await ask(`${path}?wait=25`));
    if (resource.status === "ready") return resource;
    if (resource.status === "rejected") throw new Error(resource.problems.map(told).join(" "));
    words(resource.waiting ? `${resource.waiting.message} ${resource.waiting.hint}` : "Validating ...");
  }
};

const choose = (name, resource) => {
  const select = form.elements[name];
  let option = [...select.options].find(one => one.value === resource.id);
  if (!option) {
    option = new Option(`${resource.name}@${resource.version}`, resource.id);
    select.add(option, 1);
  }
  select.value = resource.id;
  form.elements[`${name}_other`].value = "";
  select.dispatchEvent(new Event("input", { bubbles: true }));
};

const value = name => form.elements[name].value.trim();
const stem = name => name.replace(/\.(tar\.gz|[^.]+)$/, "");
// A name that is taken already gives its next version, which nobody has asked for in so many words.
const numbered = made => `Uploaded as ${made.version > 1 ? `version ${made.version} of ${made.name}` : made.name}. Validating ...`;
const makers = {
  model: async (files, told) => {
    const parts = [];
    for (const file of files) parts.push({ upload_id: await upload(file, "model", share => told(`Uploading ${file.name}`, share)), path: file.name });
    const main = files.find(one => one.name.toLowerCase().endsWith(".onnx")) || files[0];
    const made = await post("/v1/models", { name: value("model_name") || stem(main.name), files: parts });
    told(numbered(made), null);
    const resource = await ready(`/v1/models/${made.id}`, words => told(words, null));
    choose("model_id", resource);
    return resource;
  },
  dataset: async ([file], told, chosen) => {
    const body = { name: value("dataset_name") || stem(file.name), ...preprocessing(file) };
    body.upload_id = await upload(file, "dataset", share => told(`Uploading ${file.name}`, share));
    const made = await post("/v1/datasets", body);
    told(numbered(made), null);
    const resource = await ready(`/v1/datasets/${made.id}`, words => told(words, null));
    choose(chosen, resource);
    return resource;
  },
};

// What is written holds over the list; of pictures that are stored as arrays a name says nothing of size and crop.
const prepared = form.elements.preprocessing_name, seenImages = new WeakMap();
const preprocessing = file => {
  const text = value("preprocessing") || prepared.value;
  if (!text) return {};
  const offered = [...prepared.options].find(one => one.value === text);
  const arrays = prepared.dataset.arrayEndings.split(" ").some(ending => file.name.toLowerCase().endsWith(ending));
  if (offered && arrays) {
    const spec = JSON.parse(offered.dataset.arrays), found = seenImages.get(file);
    if (found) Object.assign(spec.inputs["*"], { array: found.array, layout: found.layout });
    return { preprocessing: spec };
  }
  if (!text.startsWith("{")) return { preprocessing: text };
  try { return { preprocessing: JSON.parse(text) }; } catch (error) { throw new Error(`The preprocessing is not JSON: ${error.message}`); }
};

// What a chosen file contains, in words; its preprocessing is preselected unless somebody has chosen one.
let decided = Boolean(value("preprocessing") || prepared.value);
for (const one of [prepared, form.elements.preprocessing]) one.addEventListener("input", () => { decided = true; });
const described = async file => {
  const { arraysOf, words, images } = await import(prepared.dataset.reader);
  const arrays = await arraysOf(file), found = images(arrays);
  if (found) seenImages.set(file, found);
  if (!decided) prepared.value = !found ? "" : found.channels !== 3 ? prepared.options[1].value : found.side <= 32 ? "cifar10" : "imagenet_torchvision";
  const told = arrays.slice(0, 4).map(words).join(", ") + (arrays.length > 4 ? ` and ${arrays.length - 4} more` : "");
  const then = found && !decided ? " Values of 0 to 255: a preprocessing is preselected. Check it, then press Upload data." : " Choose its preprocessing, then press Upload data.";
  return `${file.name}${told && `: ${told}`}.${then}`;
};

// The whole page as the server has it for what the form holds now; null where there is none.
const drawn = async action => {
  const fields = [...new FormData(form)].filter(([, one]) => typeof one === "string");
  return pageOf(`${root}/new`, { method: "POST", body: new URLSearchParams([...fields, ["action", action]]) });
};
// What was just chosen either fits or does not: that is told before anybody starts a job.
const check = async () => {
  if (!value("model_id")) return;
  const found = (await drawn(value("calibration_dataset_id") ? "check" : ""))?.page.getElementById("told");
  if (found) document.getElementById("told").replaceChildren(...found.childNodes);
};

// A page that is left takes the uploads with it that have not ended.
const uploading = new Set(), held = new Map();
for (const zone of document.querySelectorAll("[data-drop]")) {
  const input = zone.querySelector("input[type=file]"), out = zone.querySelector(".upload");
  const bar = document.createElement("progress"), words = document.createElement("p");
  let busy = false;
  bar.max = 1;
  bar.setAttribute("aria-label", "Uploaded");
  const told = (text, share) => {
    words.textContent = text;
    if (share === null) bar.removeAttribute("value"); else bar.value = share;
  };
  const go = async files => {
    if (!files.length || busy) return;
    busy = true;
    held.delete(zone);
    const chosen = files[0].name;
    uploading.add(chosen);
    zone.closest("details").open = true;
    out.replaceChildren(words, bar);
    words.className = "";
    try {
      const resource = await makers[zone.dataset.drop]([...files], told, zone.dataset.chosen);
      bar.remove();
      words.textContent = `✔ ${resource.name}@${resource.version} is ready${resource.fed_as ? `; ${resource.fed_as}` : ""}. It is chosen above.`;
      words.className = "good";
      input.value = "";
      await check();
      if (zone.dataset.drop === "model" && document.getElementById("quantized")) {
        words.textContent = `⚠ ${resource.name}@${resource.version} is already quantized. It is chosen above.`;
        words.className = "unsure";
      }
    } catch (error) {
      words.textContent = `✖ ${error.message}`;
      words.className = "bad";
      if (zone.dataset.drop === "dataset") held.set(zone, () => go(files));
    }
    bar.remove();
    uploading.delete(chosen);
    busy = false;
  };
  // Data is sent when its preprocessing is chosen: by the button.
  const hold = async files => {
    if (busy) return;
    if (input.files !== files) input.files = files;
    const [file] = files;
    out.replaceChildren();
    held.delete(zone);
    if (!file) return;
    held.set(zone, () => go([file]));
    zone.closest("details").open = true;
    const told = await described(file);
    if (busy || input.files[0] !== file) return;
    words.className = "hint";
    words.textContent = told;
    out.replaceChildren(words);
  };
  const take = zone.dataset.drop === "dataset" ? hold : go;
  zone.querySelector(".dropping").hidden = false;
  input.addEventListener("change", () => take(input.files));
  zone.addEventListener("dragover", event => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", event => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files);
  });
}
const sayFirst = text => {
  const told = document.createElement("p");
  told.className = "bad";
  told.setAttribute("role", "alert");
  told.textContent = text;
  document.getElementById("told").replaceChildren(told);
  told.scrollIntoView({ block: "nearest" });
};
form.querySelector(".send").hidden = true;
form.querySelector("[data-send=dataset]").addEventListener("click", async event => {
  event.preventDefault();
  if (!held.size) sayFirst("Choose a data file first.");
  for (const go of [...held.values()]) await go();
});

form.elements.model_id.addEventListener("change", check);

// A preset is one of the cards, or one of the list of all others.
const cards = [...document.querySelectorAll("input[name='c:/preset']")], others = document.getElementById("more-presets");
const choosePreset = fresh => {
  const seen = fresh.querySelector("input[name='c:/preset']:checked")?.value;
  for (const card of cards) card.checked = card.value === seen;
  others.value = seen ? "" : fresh.getElementById("more-presets").value;
};
form.addEventListener("change", ({ target }) => {
  if (cards.includes(target)) others.value = "";
  if (target === others && others.value) for (const card of cards) card.checked = false;
});

// The server knows how a config is a form; a change on one side is shown on the other.
let turn = 0;
const follow = async action => {
  const mine = ++turn;
  const answer = await drawn(action);
  if (!answer || mine !== turn || ![200, 422].includes(answer.status)) return;
  const fresh = answer.page;
  if (!fresh.getElementById("fields")) return;
  const focused = document.activeElement?.id;
  const open = [...document.querySelectorAll("#fields details")].map(one => one.open);
  const edited = form.elements.config.value;
  for (const id of ["fields", "json", "largest-drop"]) {
    document.getElementById(id).replaceChildren(...fresh.getElementById(id).childNodes);
  }
  document.querySelector("#configuration > summary").replaceChildren(...fresh.querySelector("#configuration > summary").childNodes);
  choosePreset(fresh);
  document.querySelectorAll("#fields details").forEach((one, place) => { one.open ||= open[place]; });
  if (action === "take" && answer.status === 422) form.elements.config.value = edited;
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};
form.addEventListener("change", event => {
  const name = event.target.name || "";
  if (name === "config") follow("take");
  else if (/^(c:|algorithm|metric)/.test(name)) follow("show");
});
form.addEventListener("submit", event => {
  if (uploading.size) {
    event.preventDefault();
    return sayFirst(`${[...uploading].join(", ")}: still uploading. Try again when it is ready.`);
  }
  if (held.size && ["start", "check"].includes(event.submitter?.value)) {
    event.preventDefault();
    return sayFirst("A data file is chosen and not uploaded yet. Press Upload data first.");
  }
  if (event.submitter?.value === "start") setTimeout(() => { event.submitter.disabled = true; });
});
