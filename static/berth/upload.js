/* Uploads of several files and folders into the folder that a page shows, one after the other, past the portal.
   The section with data-uploads is hidden without this; then there is the page with the form. */
(() => {
  "use strict";
  const zone = document.querySelector("[data-uploads]");
  /* What takes the files answers pages of one origin alone: under another address of the portal there is the form. */
  if (!zone || location.origin !== zone.dataset.origin) return;
  const words = {};
  for (const each of zone.querySelectorAll("[data-word]")) words[each.dataset.word] = each.textContent.trim();
  const list = zone.querySelector("[data-list]"), sum = zone.querySelector("[data-sum]"), done = zone.querySelector("[data-done]");
  const replaces = zone.querySelector("[name=replace]"), token = zone.querySelector("[name=csrfmiddlewaretoken]").value;
  const waiting = [], made = new Set();
  let busy = false, saved = 0, failed = 0;
  zone.hidden = false;

  /* A name as REST has it: what is no printable character, and "%", by its bytes. */
  const wire = (name) => [...name].map((each) => /[\p{C}\p{Z}%]/u.test(each) && each !== " "
    ? [...new TextEncoder().encode(each)].map((byte) => "%" + byte.toString(16).toUpperCase().padStart(2, "0")).join("") : each).join("");
  const joined = (...parts) => parts.filter((each) => each).join("/");

  async function post(url, body) {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token };
    const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" });
    if (answer.ok) return answer.status === 204 ? {} : answer.json();
    const problem = await answer.json().catch(() => ({}));
    throw Object.assign(new Error(problem.detail || words.lost), { code: problem.code });
  }

  async function folders(path) {
    for (let end = path.indexOf("/"); ; end = path.indexOf("/", end + 1)) {
      const part = end < 0 ? path : path.slice(0, end);
      if (part && !made.has(part)) {
        try { await post(zone.dataset.folders, { path: joined(zone.dataset.path, part) }); }
        catch (error) { if (error.code !== "file_exists") throw error; }
        made.add(part);
      }
      if (end < 0) return;
    }
  }

  function send(url, file, bar) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("PUT", url);
      request.upload.onprogress = (event) => { if (event.lengthComputable && event.total) bar.value = event.loaded * 100 / event.total; };
      request.onload = () => {
        if (request.status === 201) { resolve(); return; }
        const code = (/: ([a-z_]+)\./.exec(request.responseText) || [])[1];
        reject(Object.assign(new Error((words[code] || words.lost).replace("NAME", file.name)), { code }));
      };
      request.onerror = request.onabort = () => reject(new Error(words.lost));
      request.send(file);
    });
  }

  function show(item, text, state) {
    item.about.textContent = text;
    item.row.dataset.state = state;
  }

  function button(text, item, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "btn small";
    made.textContent = text;
    made.setAttribute("aria-label", text + " " + item.path);
    made.addEventListener("click", () => { item.acts.replaceChildren(); failed -= 1; act(); waiting.push(item); work(); });
    item.acts.append(made);
  }

  async function upload(item) {
    show(item, words.uploading, "busy");
    item.bar.hidden = false;
    try {
      const slash = item.path.lastIndexOf("/");
      if (slash >= 0) await folders(item.path.slice(0, slash));
      const given = { path: joined(zone.dataset.path, item.path), replace: item.replace || replaces.checked };
      const ticket = await post(zone.dataset.tickets, given);
      await send(ticket.url, item.file, item.bar);
      saved += 1;
      show(item, words.saved, "saved");
    } catch (error) {
      failed += 1;
      show(item, error.message, "failed");
      if (error.code === "exists") button(words.replace, item, () => { item.replace = true; });
      else button(words.again, item, () => {});
    }
    item.bar.hidden = true;
  }

  async function work() {
    if (busy) return;
    busy = true;
    done.hidden = true;
    while (waiting.length) {
      sum.textContent = words.left.replace("COUNT", waiting.length);
      await upload(waiting.shift());
    }
    busy = false;
    sum.textContent = words.end.replace("SAVED", saved).replace("FAILED", failed);
    done.hidden = !saved;
  }

  function add(file, path) {
    const row = document.createElement("li"), name = document.createElement("bdi"), about = document.createElement("span");
    const bar = document.createElement("progress"), acts = document.createElement("span");
    name.textContent = path;
    about.className = "small muted";
    bar.className = "bar";
    bar.max = 100; bar.value = 0; bar.hidden = true;
    bar.setAttribute("aria-label", path);
    row.append(name, about, bar, acts);
    list.append(row);
    const item = { file, row, about, bar, acts, path: path.split("/").map(wire).join("/"), replace: false };
    show(item, words.waiting, "waiting");
    waiting.push(item);
  }

  async function entry(found, before) {
    const path = joined(before, found.name);
    if (found.isFile) { add(await new Promise((yes, no) => found.file(yes, no)), path); return; }
    const reader = found.createReader();
    for (;;) {
      const some = await new Promise((yes, no) => reader.readEntries(yes, no));
      if (!some.length) return;
      for (const each of some) await entry(each, path);
    }
  }

  zone.addEventListener("change", (event) => {
    if (event.target.type !== "file") return;
    for (const file of event.target.files) add(file, file.webkitRelativePath || file.name);
    event.target.value = "";
    work();
  });
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", (event) => { if (!zone.contains(event.relatedTarget)) zone.classList.remove("over"); });
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    /* All at once: what was dropped is gone after the first wait. Some, as a picture of another page, has no entry. */
    const dropped = [...event.dataTransfer.items].filter((each) => each.kind === "file")
      .map((each) => (each.webkitGetAsEntry && each.webkitGetAsEntry()) || each.getAsFile()).filter((each) => each);
    for (const each of dropped) {
      if (each instanceof File) { add(each, each.name); continue; }
      try { await entry(each, ""); } catch (error) { failed += 1; sum.textContent = words.unread.replace("NAME", each.name); }
    }
    if (waiting.length) work();
  });
  window.addEventListener("beforeunload", (event) => { if (busy) event.preventDefault(); });
})();
