/* Selected rows of a list that refreshes itself: the selection outlives a refresh, and is counted. Without this
   script the boxes and the form work as well. */
(function () {
  "use strict";

  const BOXES = "input[name=workspace]";
  let kept = null;

  function list() {
    return document.querySelector("[data-selection]");
  }

  /* Show how many are selected, and whether that is the whole page. */
  function count(root) {
    const boxes = [...root.querySelectorAll(BOXES)];
    const selected = boxes.filter((box) => box.checked).length;
    const page = root.querySelector("[data-select-page]");
    const all = root.querySelector("[data-select-all]");
    if (page) {
      page.hidden = boxes.length === 0;
      page.checked = selected > 0 && selected === boxes.length;
      page.indeterminate = selected > 0 && selected < boxes.length;
    }
    const output = root.querySelector("[data-selected-count]");
    if (output) {
      output.hidden = selected === 0 || (all && all.checked);
      output.querySelector("strong").textContent = selected;
    }
  }

  document.addEventListener("change", (event) => {
    const root = event.target.closest("[data-selection]");
    if (!root) return;
    if (event.target.matches("[data-select-page]")) {
      for (const box of root.querySelectorAll(BOXES)) box.checked = event.target.checked;
    }
    // One of both: single rows, or all that match.
    const all = root.querySelector("[data-select-all]");
    if (all && event.target !== all && event.target.checked) all.checked = false;
    if (all && event.target === all && all.checked) {
      for (const box of root.querySelectorAll(BOXES)) box.checked = false;
    }
    count(root);
  });

  document.addEventListener("htmx:beforeSwap", (event) => {
    const root = event.detail.target;
    if (!root || !root.matches("[data-selection]")) return;
    const filtered = event.detail.requestConfig && event.detail.requestConfig.elt !== root;
    const all = root.querySelector("[data-select-all]");
    kept = {
      boxes: new Set([...root.querySelectorAll(BOXES + ":checked")].map((box) => box.value)),
      // Other filters select others: who meant all of before is asked again.
      all: Boolean(all && all.checked && !filtered),
    };
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const root = event.detail.target;
    if (!kept || !root || !root.matches("[data-selection]")) return;
    for (const box of root.querySelectorAll(BOXES)) box.checked = kept.boxes.has(box.value);
    const all = root.querySelector("[data-select-all]");
    if (all) all.checked = kept.all;
    kept = null;
    count(root);
  });

  window.addEventListener("pageshow", () => { if (list()) count(list()); });
  if (list()) count(list());
})();
