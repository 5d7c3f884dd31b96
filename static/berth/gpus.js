/* The map of GPUs by keyboard: one stop for Tab, arrows from cell to cell and node to node. */
(function () {
  "use strict";

  const cellsOf = (map) => Array.from(map.querySelectorAll("a.gpu"));
  let last = null;

  function prepare(root) {
    for (const map of root.querySelectorAll("[data-roving]")) {
      const cells = cellsOf(map);
      for (const cell of cells) cell.tabIndex = -1;
      const known = last && cells.find((cell) => cell.getAttribute("href") === last.href);
      if (known || cells[0]) (known || cells[0]).tabIndex = 0;
      /* What is refreshed under the reader's hands keeps the focus. */
      if (known && last.focused) known.focus({ preventScroll: true });
    }
  }

  function move(map, from, to) {
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest && event.target.closest("[data-roving] a.gpu");
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    const map = cell.closest("[data-roving]");
    const cells = cellsOf(map);
    const place = cells.indexOf(cell);
    const row = cell.closest("li");
    const column = cellsOf(row).indexOf(cell);
    const beside = (other) => {
      const own = other ? cellsOf(other) : [];
      return own[Math.min(column, own.length - 1)];
    };
    const target = {
      ArrowRight: () => cells[place + 1],
      ArrowLeft: () => cells[place - 1],
      ArrowDown: () => beside(row.nextElementSibling),
      ArrowUp: () => beside(row.previousElementSibling),
      Home: () => cellsOf(row)[0],
      End: () => cellsOf(row).at(-1),
    }[event.key];
    if (!target) return;
    event.preventDefault();
    move(map, cell, target());
  });

  document.addEventListener("focusin", (event) => {
    const cell = event.target.closest && event.target.closest("[data-roving] a.gpu");
    if (cell) last = { href: cell.getAttribute("href"), focused: true };
    else if (last) last.focused = false;
  });

  /* The words of a cell under the pointer, which its markup carries once only. */
  document.addEventListener("pointerover", (event) => {
    const cell = event.target.closest && event.target.closest("[data-roving] a.gpu");
    if (cell && !cell.title) cell.title = cell.getAttribute("aria-label");
  });

  document.addEventListener("htmx:afterSettle", (event) => prepare(event.target));
  prepare(document);
})();
