/* What was typed into a form outlives the end of the session: the form is filled again after signing in.
   The entries stay in this tab, for the same account only, and never include passwords, keys or files. */
(function () {
  "use strict";

  const KEY = "berth-draft";
  const KEPT_MS = 3600000;
  const words = document.getElementById("say").dataset;
  const account = document.querySelector("[data-account]")?.dataset.account || "";

  /* Forms without autofill hold secrets; addresses of chats are secrets, too (data-no-draft). */
  const posts = (form) => (form.getAttribute("method") || "").toLowerCase() === "post";
  const keeps = (form) => account && posts(form) && !form.hasAttribute("data-no-draft") && form.autocomplete !== "off";
  /* With the version that was read, a change by somebody else meanwhile is noticed as before. */
  const LEFT_OUT = "[type=password], [type=file], [type=hidden]:not([name=version]), [type=submit], button, [data-sends-set], [autocomplete=one-time-code], fieldset, output";
  const isKept = (field) => field.name && !field.matches(LEFT_OUT);
  const fieldsOf = (form) => Array.from(form.elements).filter(isKept);
  const pathOf = (form) => new URL(form.getAttribute("action") || location.href, location.href).pathname;
  const keyOf = (form) => {
    const path = pathOf(form);
    const alike = Array.from(document.forms).filter((other) => posts(other) && pathOf(other) === path);
    return `${path}#${alike.indexOf(form)}`;
  };

  function read() {
    try {
      return JSON.parse(sessionStorage.getItem(KEY));
    } catch {
      return null;
    }
  }

  function write(draft) {
    try {
      if (draft) sessionStorage.setItem(KEY, JSON.stringify(draft));
      else sessionStorage.removeItem(KEY);
    } catch {
      /* Storage is full or off: the form is sent all the same. */
    }
  }

  function keep(form) {
    const entries = [];
    for (const field of fieldsOf(form)) {
      if (field.matches("[type=checkbox], [type=radio]") && !field.checked) continue;
      const values = field.matches("select") ? Array.from(field.selectedOptions, (option) => option.value) : [field.value];
      for (const value of values) entries.push([field.name, value]);
    }
    write(entries.some(([name]) => name !== "version") ? { account, form: keyOf(form), at: Date.now(), entries } : null);
  }

  let edited = null;
  document.addEventListener("input", (event) => {
    const form = event.target.form;
    if (form && keeps(form) && isKept(event.target)) edited = form;
  });
  document.addEventListener("submit", (event) => {
    if (!keeps(event.target)) return;
    edited = null;
    keep(event.target);
  });
  /* A part of the page that is refreshed after the end of the session leads to the sign-in page. */
  window.addEventListener("pagehide", () => edited && edited.isConnected && keep(edited));

  function fill(form, entries) {
    const values = new Map();
    for (const [name, value] of entries) values.set(name, [...(values.get(name) || []), value]);
    let changed = null;
    for (const field of fieldsOf(form)) {
      const own = values.get(field.name) || [];
      if (field.matches("[type=checkbox], [type=radio]")) {
        if (field.checked !== own.includes(field.value)) changed = field;
        field.checked = own.includes(field.value);
      } else if (field.matches("select")) {
        for (const option of field.options) option.selected = own.includes(option.value);
      } else if (own.length) {
        if (field.value !== own[0]) changed = field;
        field.value = own.shift();
      }
    }
    for (const part of form.querySelectorAll("details:not([open])")) if (part.contains(changed)) part.open = true;
    const note = document.createElement("p");
    note.className = "note wait";
    note.setAttribute("role", "status");
    note.textContent = words.restored;
    form.prepend(note);
    edited = form;
    if (changed) changed.dispatchEvent(new Event("change", { bubbles: true }));
  }

  const draft = read();
  if (!draft) return;
  if (!account || document.querySelector("[data-keeps-draft]")) {
    /* A page to sign in, or an error page: the form was not saved. */
    write({ ...draft, interrupted: true });
    return;
  }
  const form = draft.interrupted && Array.from(document.forms).find((candidate) => keyOf(candidate) === draft.form);
  const expired = Date.now() - draft.at > KEPT_MS;
  if (form && !expired && draft.account === account) fill(form, draft.entries);
  if (form || expired || !draft.interrupted || draft.account !== account) write(null);
})();
