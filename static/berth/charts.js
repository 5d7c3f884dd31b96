/* Charts: times in the reader's zone, tables that stay open over a refresh, and rest in hidden tabs. */
(() => {
  "use strict";
  const language = document.documentElement.lang || "en";
  const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const date = new Intl.DateTimeFormat(language, { day: "numeric", month: "short" });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

  function show(root) {
    for (const node of root.querySelectorAll("[data-clock]")) node.textContent = clock.format(new Date(node.dataset.clock));
    for (const node of root.querySelectorAll("[data-date]")) node.textContent = date.format(new Date(node.dataset.date));
    for (const node of root.querySelectorAll("[data-zone]")) node.textContent = node.dataset.zone.replace("%s", zone.replaceAll("_", " "));
  }

  let open = [];
  document.addEventListener("htmx:beforeRequest", (event) => {
    // Only what a timer or a tab's return asks for rests; what somebody clicks is always fetched.
    if (document.hidden && event.detail.elt.matches("[data-when-seen]")) event.preventDefault();
  });
  document.addEventListener("htmx:beforeSwap", (event) => {
    open = [...event.detail.target.querySelectorAll(".charts details[open]")].map((node) => [
      node.id, node.querySelector(".table-wrap")?.scrollTop || 0,
    ]);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    // After a step back in the history, the whole page is new and there is no target.
    const root = event.detail.target || document;
    for (const [id, scrolled] of open) {
      const node = root.querySelector("#" + CSS.escape(id));
      if (!node) continue;
      node.open = true;
      const wrap = node.querySelector(".table-wrap");
      if (wrap) wrap.scrollTop = scrolled;
    }
    open = [];
    show(root);
  });
  show(document);
})();
