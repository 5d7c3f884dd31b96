/* The quota matrix: counts changed cells, arrow keys change the team, Escape restores a cell. Without this script
   the form works as well. */
(function () {
  "use strict";

  const form = document.querySelector("[data-matrix]");
  if (!form) return;
  const cells = [...form.querySelectorAll("td input")];
  const count = form.querySelector("[data-matrix-count]");
  const discard = form.querySelector("[data-matrix-reset]");
  let sending = false;

  /* What is stored: a page with errors shows what was entered instead. */
  function stored(cell) {
    return cell.dataset.stored === undefined ? cell.defaultValue : cell.dataset.stored;
  }

  function changed() {
    return cells.filter((cell) => cell.value.trim() !== stored(cell));
  }

  function show() {
    const different = new Set(changed());
    for (const cell of cells) cell.parentElement.classList.toggle("changed", different.has(cell));
    count.hidden = discard.hidden = different.size === 0;
    count.querySelector("strong").textContent = different.size;
    form.classList.toggle("dirty", different.size > 0);
  }

  function restore(cell) {
    cell.value = stored(cell);
  }

  form.addEventListener("input", show);
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    cells.forEach(restore);
    show();
    cells[0].focus();
  });
  form.addEventListener("keydown", (event) => {
    const cell = event.target;
    if (!cells.includes(cell)) return;
    if (event.key === "Escape" && cell.value.trim() !== stored(cell)) {
      restore(cell);
      show();
      event.preventDefault();
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const row = cell.closest("tr");
    const column = [...row.children].indexOf(cell.parentElement);
    const next = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
    const target = next && next.children[column].querySelector("input");
    if (!target) return;
    event.preventDefault();
    target.focus();
    target.select();
  });
  form.addEventListener("submit", () => { sending = true; });
  window.addEventListener("beforeunload", (event) => {
    if (!sending && changed().length) event.preventDefault();
  });
  // After a step back in the history the browser restores what was entered.
  window.addEventListener("pageshow", () => { sending = false; show(); });
  show();
})();
