/* The map of GPUs by keyboard: one stop for Tab, arrows from cell to cell and node to node. A card beside the cell
   under the pointer or with the focus says who holds the GPU. */
(function () {
  "use strict";

  const ROOT = document.getElementById("gpus");
  const CARD = document.getElementById("gpu-card");
  const CELL = "[data-roving] a.gpu, [data-roving] i";
  const CARD_DELAY_MS = 200;
  const cellOf = (node) => (node instanceof Element ? node.closest(CELL) : null);
  const cellsOf = (part) => Array.from(part ? part.querySelectorAll("a.gpu, i") : []);
  let last = null;

  /* --- Small cells: their markup has the state only, so that 1,000 of them stay a small page. --- */

  function placeOf(cell) {
    if (cell.matches("a.gpu")) return cell.getAttribute("href");
    const node = new URL(cell.closest("li").querySelector("a").href).searchParams;
    return `${ROOT.dataset.card}${node.get("pool")}/${encodeURIComponent(node.get("node"))}/${indexOf(cell)}/`;
  }

  function indexOf(cell) {
    return cell.dataset.index || String(Array.prototype.indexOf.call(cell.parentNode.children, cell));
  }

  function zoomOf(cell) {
    return `${cell.closest("li").querySelector("a").href}#gpu-${indexOf(cell)}`;
  }

  function nameSmallCells(root) {
    const words = {};
    for (const entry of ROOT.querySelectorAll(".legend [data-state]"))
      words[entry.dataset.state] = entry.dataset.word.toLowerCase();
    for (const cell of root.querySelectorAll("[data-roving] i")) {
      const stale = cell.parentNode.classList.contains("stale") ? `, ${ROOT.dataset.stale}` : "";
      cell.setAttribute("role", "link");
      cell.setAttribute("aria-label", `GPU ${indexOf(cell)} ${words[cell.className] || ""}${stale}`);
    }
    for (const row of root.querySelectorAll("[data-roving] span[aria-hidden]:has(> i)")) row.removeAttribute("aria-hidden");
  }

  /* --- Keyboard --- */

  function prepare(root) {
    if (!ROOT || !root.querySelectorAll) return;
    nameSmallCells(root);
    for (const map of root.querySelectorAll("[data-roving]")) {
      const cells = cellsOf(map);
      for (const cell of cells) cell.tabIndex = -1;
      const known = last && cells.find((cell) => placeOf(cell) === last.place);
      if (known || cells[0]) (known || cells[0]).tabIndex = 0;
      /* What is refreshed under the reader's hands keeps the focus. */
      if (known && last.focused) known.focus({ preventScroll: true });
    }
  }

  function move(from, to) {
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && CARD && !CARD.hidden) {
      const cell = CARD.contains(document.activeElement) ? shown : null;
      hideCard();
      if (cell) cell.focus();
      return;
    }
    const cell = cellOf(event.target);
    if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Tab" && !event.shiftKey) return void intoCard(event, cell);
    if (event.key === "Enter" && cell.matches("i")) return void location.assign(zoomOf(cell));
    const map = cell.closest("[data-roving]");
    const cells = cellsOf(map);
    const place = cells.indexOf(cell);
    const rows = Array.from(map.querySelectorAll("li")).filter((row) => cellsOf(row).length);
    const row = cell.closest("li");
    const column = cellsOf(row).indexOf(cell);
    const beside = (step) => {
      const own = cellsOf(rows[rows.indexOf(row) + step]);
      return own[Math.min(column, own.length - 1)];
    };
    const target = {
      ArrowRight: () => cells[place + 1],
      ArrowLeft: () => cells[place - 1],
      ArrowDown: () => beside(1),
      ArrowUp: () => beside(-1),
      Home: () => cellsOf(row)[0],
      End: () => cellsOf(row).at(-1),
    }[event.key];
    if (!target) return;
    event.preventDefault();
    move(cell, target());
  });

  document.addEventListener("focusin", (event) => {
    const cell = cellOf(event.target);
    if (cell) {
      last = { place: placeOf(cell), focused: true };
      showCard(cell);
    } else {
      if (last) last.focused = false;
      if (CARD && !CARD.contains(event.target)) hideCard();
    }
  });

  document.addEventListener("click", (event) => {
    const cell = cellOf(event.target);
    if (cell && cell.matches("i")) location.assign(zoomOf(cell));
  });

  /* --- The card --- */

  let shown = null;
  let timer = 0;
  let request = null;

  function showCard(cell) {
    clearTimeout(timer);
    if (!CARD || cell === shown) return;
    timer = setTimeout(() => load(cell), CARD_DELAY_MS);
  }

  async function load(cell) {
    if (request) request.abort();
    request = new AbortController();
    try {
      const answer = await fetch(`${placeOf(cell)}card/`, { signal: request.signal, credentials: "same-origin" });
      if (!answer.ok || answer.redirected || !cell.isConnected) return hideCard();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      CARD.replaceChildren(...page.body.childNodes);
    } catch {
      return;
    }
    if (shown) shown.removeAttribute("aria-describedby");
    shown = cell;
    cell.setAttribute("aria-describedby", "gpu-card");
    CARD.hidden = false;
    placeCard(cell);
  }

  function placeCard(cell) {
    const at = cell.getBoundingClientRect();
    const below = at.bottom + CARD.offsetHeight + 8 < window.innerHeight;
    const left = Math.min(at.left, document.documentElement.clientWidth - CARD.offsetWidth - 8);
    CARD.style.left = `${Math.max(8, left)}px`;
    CARD.style.top = `${below ? at.bottom + 4 : Math.max(0, at.top - CARD.offsetHeight - 4)}px`;
  }

  function hideCard() {
    clearTimeout(timer);
    if (request) request.abort();
    if (shown) shown.removeAttribute("aria-describedby");
    shown = null;
    if (CARD) CARD.hidden = true;
  }

  /* Tab leads from a cell to the link of its card, and from there back into the page. */
  function intoCard(event, cell) {
    const link = CARD && !CARD.hidden && shown === cell && CARD.querySelector("a");
    if (!link) return;
    event.preventDefault();
    link.focus();
  }

  if (CARD)
    CARD.addEventListener("keydown", (event) => {
      if (event.key !== "Tab" || !shown) return;
      const cell = shown;
      if (event.shiftKey) event.preventDefault();
      cell.focus();
      hideCard();
    });

  document.addEventListener("pointerover", (event) => {
    if (!CARD || event.pointerType === "touch") return;
    const cell = cellOf(event.target);
    if (cell) showCard(cell);
    else if (CARD.contains(event.target)) clearTimeout(timer);
    else if (!CARD.contains(document.activeElement) && cellOf(document.activeElement) !== shown) {
      clearTimeout(timer);
      timer = setTimeout(hideCard, CARD_DELAY_MS);
    }
  });

  document.addEventListener("scroll", () => shown && placeCard(shown), { passive: true });
  document.addEventListener("htmx:beforeSwap", (event) => event.target === ROOT && hideCard());
  document.addEventListener("htmx:afterSettle", (event) => prepare(event.target));
  prepare(document);
})();
