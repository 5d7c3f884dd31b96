/* What pages do beyond HTML. Everything works without it; this makes it quicker to use. */
(function () {
  "use strict";

  const YEAR_S = 31536000;
  /* What scripts say stands in the page, in its language. */
  const words = document.getElementById("say").dataset;

  /* --- What only a timer or a tab's return asks for rests while the tab is hidden ----------------------- */
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.matches("[data-when-seen]")) event.preventDefault();
  });

  /* --- Theme: a cookie, so that the server renders the next page right from the start ------------------ */
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-theme-choice]");
    if (!button) return;
    event.preventDefault();
    const theme = button.value;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    const encrypted = location.protocol === "https:";
    const cookie = (encrypted ? "__Host-" : "") + "berth-theme=" + theme + "; Path=/; SameSite=Lax; Max-Age=";
    document.cookie = cookie + (theme ? YEAR_S : 0) + (encrypted ? "; Secure" : "");
    for (const other of document.querySelectorAll("[data-theme-choice]")) {
      other.setAttribute("aria-pressed", String(other.value === theme));
    }
  });

  /* --- Times: relative for the eye, absolute in the reader's zone -------------------------------------- */
  /* The language of the page, as the reader's country writes it. */
  const pageLanguage = document.documentElement.lang || "en";
  const locale = navigator.languages.find((each) => each.split("-")[0] === pageLanguage.split("-")[0]) || pageLanguage;
  const absolute = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });
  const toSecond = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "medium" });
  const relative = new Intl.RelativeTimeFormat(locale, { numeric: "auto" });
  const counted = new Intl.RelativeTimeFormat(locale, { numeric: "always" });
  const UNITS = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const NOW_S = 10;

  function ago(seconds) {
    const distance = Math.abs(seconds);
    if (distance < NOW_S) return relative.format(0, "second");
    const [size, unit] = UNITS.find(([each]) => distance >= each);
    // "Yesterday" is another day, not 24 hours ago.
    const count = Math.floor(distance / size) * (seconds > 0 ? -1 : 1);
    return (unit === "day" ? counted : relative).format(count, unit);
  }

  function duration(seconds) {
    const whole = Math.max(0, Math.round(seconds));
    if (whole < 60) return whole + " s";
    let minutes = Math.floor(whole / 60);
    if (minutes < 60) return whole % 60 && minutes < 10 ? minutes + " min " + (whole % 60) + " s" : minutes + " min";
    const hours = Math.floor(minutes / 60);
    minutes %= 60;
    if (hours < 48) return minutes ? hours + " h " + minutes + " min" : hours + " h";
    const days = Math.floor(hours / 24);
    return hours % 24 ? days + " d " + (hours % 24) + " h" : days + " d";
  }

  function setText(node, text) {
    if (node && node.textContent !== text) node.textContent = text;
  }

  function tick(root) {
    const now = Date.now();
    for (const time of root.querySelectorAll("time[data-when]")) {
      const moment = new Date(time.dateTime);
      setText(time.firstElementChild, ago((now - moment) / 1000));
      if (!time.dataset.zoned) {
        const text = absolute.format(moment);
        time.title = text;
        setText(time.lastElementChild, text);
        time.dataset.zoned = "1";
      }
    }
    for (const time of root.querySelectorAll("time[data-until]")) {
      const moment = new Date(time.dateTime);
      setText(time.firstElementChild, duration((moment - now) / 1000));
      if (!time.dataset.zoned) {
        const text = absolute.format(moment);
        time.title = text;
        setText(time.lastElementChild, " (" + text + ")");
        time.dataset.zoned = "1";
      }
    }
    for (const time of root.querySelectorAll("time[data-exact]")) {
      const moment = new Date(time.dateTime);
      if (!time.dataset.zoned) {
        setText(time, toSecond.format(moment));
        time.dataset.zoned = "1";
      }
      time.title = ago((now - moment) / 1000);
    }
    for (const span of root.querySelectorAll("[data-since]")) {
      setText(span, duration((now - new Date(span.dataset.since)) / 1000));
    }
  }
  setInterval(() => { if (!document.hidden) tick(document); }, 1000);

  /* --- Live events: one source that reconnects, says when it is lost, and rests in hidden tabs ---------- */
  const live = { lost: new Set() };
  const REST_AFTER_MS = 20000;

  function showLive() {
    const banner = document.getElementById("live-lost");
    if (banner) banner.hidden = live.lost.size === 0;
  }

  class LiveSource extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.names = new Set();
      this.readyState = 0;
      this.failures = 0;
      this.connect();
      this.onVisibility = () => {
        clearTimeout(this.rest);
        if (document.hidden) this.rest = setTimeout(() => this.drop(), REST_AFTER_MS);
        else if (!this.inner && this.readyState !== 2) this.again();
      };
      this.onHide = () => this.drop();
      this.onShow = (event) => { if (event.persisted && this.readyState !== 2) this.again(); };
      document.addEventListener("visibilitychange", this.onVisibility);
      window.addEventListener("pagehide", this.onHide);
      window.addEventListener("pageshow", this.onShow);
    }

    addEventListener(name, listener, options) {
      super.addEventListener(name, listener, options);
      if (this.names.has(name)) return;
      this.names.add(name);
      if (this.inner) this.listen(name);
    }

    listen(name) {
      this.inner.addEventListener(name, (event) => this.emit(name, event.data));
    }

    emit(name, data) {
      this.dispatchEvent(new MessageEvent(name, { data: data }));
    }

    connect() {
      this.drop();
      const inner = new EventSource(this.url);
      this.inner = inner;
      this.names.forEach((name) => this.listen(name));
      inner.onopen = () => {
        this.readyState = 1;
        this.failures = 0;
        live.lost.delete(this);
        showLive();
        if (this.onopen) this.onopen(new Event("open"));
      };
      inner.onerror = () => {
        if (this.inner !== inner) return;
        this.drop();
        this.failures += 1;
        if (this.failures > 1) { live.lost.add(this); showLive(); }
        const wait = Math.min(30000, 500 * 2 ** Math.min(this.failures, 6)) * (0.75 + Math.random() / 2);
        this.retry = setTimeout(() => this.again(), wait);
      };
    }

    /* Connect anew and fetch what was missed; while the stream stays away this is polling. */
    again() {
      if (this.readyState === 2) return;
      this.connect();
      this.names.forEach((name) => this.emit(name, ""));
    }

    drop() {
      clearTimeout(this.retry);
      if (this.inner) this.inner.close();
      this.inner = null;
      if (this.readyState === 1) this.readyState = 0;
    }

    close() {
      this.drop();
      clearTimeout(this.rest);
      this.readyState = 2;
      live.lost.delete(this);
      showLive();
      document.removeEventListener("visibilitychange", this.onVisibility);
      window.removeEventListener("pagehide", this.onHide);
      window.removeEventListener("pageshow", this.onShow);
    }
  }
  if (window.htmx) window.htmx.createEventSource = (url) => new LiveSource(url);

  /* --- Dialogs: a link to a page that asks becomes a dialog that asks ---------------------------------- */
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-dialog]");
    if (opener && !event.metaKey && !event.ctrlKey && event.button === 0) {
      const dialog = document.getElementById(opener.dataset.dialog);
      if (dialog && dialog.showModal) {
        event.preventDefault();
        dialog.showModal();
        // The opener may have been swapped for a new one meanwhile: the focus goes to what has its id.
        const id = opener.id;
        dialog.addEventListener("close", () => {
          const back = id && document.getElementById(id);
          if (back) back.focus();
        }, { once: true });
      }
      return;
    }
    const closer = event.target.closest("[data-dialog-close]");
    if (closer) {
      const dialog = closer.closest("dialog");
      if (dialog) { event.preventDefault(); dialog.close(); }
    }
  });

  /* --- Search: Ctrl-K opens it, arrows go through what was found --------------------------------------- */
  document.addEventListener("keydown", (event) => {
    const dialog = document.getElementById("find");
    if (!dialog) return;
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (!dialog.open) dialog.showModal();
      dialog.querySelector("input").select();
      return;
    }
    if (!dialog.open || !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
    const links = [...dialog.querySelectorAll("#results a")];
    const at = links.indexOf(document.activeElement);
    if (event.key === "Enter") {
      // Enter in the field opens the first result; without one, the form leads to the page of the search.
      if (at < 0 && links.length) { event.preventDefault(); links[0].click(); }
      return;
    }
    event.preventDefault();
    const next = at + (event.key === "ArrowDown" ? 1 : -1);
    (links[next] || (next < 0 ? dialog.querySelector("input") : links[links.length - 1]))?.focus();
  });

  /* --- Copy -------------------------------------------------------------------------------------------- */
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const field = document.getElementById(button.dataset.copy);
    const text = field.value !== undefined ? field.value : field.textContent;
    try {
      await navigator.clipboard.writeText(text);
      say(words.copied);
      const label = button.querySelector("[data-copy-label]");
      if (label) {
        const before = label.textContent;
        label.textContent = words.copied;
        setTimeout(() => { label.textContent = before; }, 2000);
      }
    } catch {
      if (field.select) field.select();
      say(words.noCopy);
    }
  });

  function say(text) {
    setText(document.getElementById("say"), text);
  }

  /* --- Workspaces have origins of their own, which a browser may not reach ------------------------------- */
  const unreachable = document.getElementById("unreachable");
  const PROBE_MS = 5000;
  const NEEDS_WORKSPACES = "[data-opens], [data-open-now], [data-uploads]";
  let probe = null;

  async function answers(url, options) {
    try {
      return (await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PROBE_MS), ...options })).ok;
    } catch {
      return false;
    }
  }

  /* Whether workspaces can be opened. If the portal is away as well, nothing is known. */
  async function workspacesAnswer() {
    if (await answers(unreachable.dataset.probe, { mode: "cors", credentials: "omit" })) return true;
    return !(await answers("/healthz/live"));
  }

  function probeWorkspaces(root) {
    if (!probe && unreachable && (root.querySelector(NEEDS_WORKSPACES) || root.matches(NEEDS_WORKSPACES))) {
      probe = workspacesAnswer().then((reached) => {
        unreachable.hidden = reached;
        return reached;
      });
    }
    return probe;
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-opens]") || !unreachable || unreachable.hidden || unreachable.dataset.read) return;
    event.preventDefault();
    unreachable.dataset.read = "1";
    unreachable.focus();
  });

  /* --- Forms that are checked while they are filled in: a field is marked as its problems say ------------ */
  document.addEventListener("htmx:oobAfterSwap", (event) => {
    const box = event.detail.target;
    const control = box && box.dataset.problemOf && document.getElementById(box.dataset.problemOf);
    if (!control) return;
    if (box.querySelector(".problem")) {
      control.setAttribute("aria-invalid", "true");
      control.setAttribute("aria-errormessage", box.id);
    } else {
      control.removeAttribute("aria-invalid");
      control.removeAttribute("aria-errormessage");
    }
  });

  /* Of a field that may hold a password, only whether it is filled in becomes part of an address. */
  document.addEventListener("htmx:configRequest", (event) => {
    const form = event.detail.elt;
    if (event.detail.verb !== "get" || form.tagName !== "FORM") return;
    for (const field of form.querySelectorAll("[data-sends-set]")) {
      if (field.value) event.detail.parameters[field.name + "_set"] = "1";
    }
  });

  /* --- Forms: a second click on a slow form does nothing ------------------------------------------------ */
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post") return;
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "1";
    if ("once" in form.dataset) {
      // The way back to this form leads to what it made, instead of to a form that makes another.
      const here = new URL(location.href);
      here.searchParams.set("once", form.elements.once.value);
      history.replaceState(history.state, "", here);
    }
    const button = event.submitter;
    const label = button && button.dataset.busy ? button.querySelector("[data-label]") || button : null;
    if (label) {
      button.dataset.before = label.textContent;
      label.textContent = button.dataset.busy;
      say(button.dataset.busy);
    }
  });
  /* A form that was not sent, or has come back with the page, can be sent once more. */
  function unsay(root) {
    for (const form of [root, ...root.querySelectorAll("form[data-sent]")]) delete form.dataset.sent;
    for (const button of root.querySelectorAll("[data-before]")) {
      (button.querySelector("[data-label]") || button).textContent = button.dataset.before;
      delete button.dataset.before;
    }
  }
  window.addEventListener("pageshow", () => unsay(document.body));

  /* An answer that leads elsewhere, as to signing in, while the page is being left would end what was just sent. */
  let leavingUntil = 0;
  window.addEventListener("beforeunload", () => { leavingUntil = performance.now() + 10000; });
  window.addEventListener("pageshow", () => { leavingUntil = 0; });
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    if (performance.now() < leavingUntil && event.detail.xhr.getResponseHeader("HX-Redirect")) event.preventDefault();
  });

  /* Logs read from the end; one that the reader has scrolled up stays where it is. */
  function settleLogs(root) {
    for (const log of root.querySelectorAll("[data-tail]")) log.scrollTop = log.scrollHeight;
  }
  let logsAtEnd = true;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const log = event.detail.target.querySelector("[data-tail]");
    logsAtEnd = !log || log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  });

  /* --- A part that is replaced while it is being clicked would lose the click --------------------------- */
  const HELD_MS = 2000;
  let pressed = null, pressedAt = 0, replaceLater = null;
  document.addEventListener("pointerdown", (event) => { pressed = event.target; pressedAt = performance.now(); }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => {
      pressed = null;
      // After the click, which comes right behind.
      if (replaceLater) setTimeout(() => { replaceLater && replaceLater(); replaceLater = null; }, 0);
    }, true);
  }
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { target, requestConfig } = event.detail;
    // A pointer that was let go outside of the window is never heard of.
    if (!pressed || performance.now() - pressedAt > HELD_MS || !target.contains(pressed)) return;
    if (!requestConfig || requestConfig.verb !== "get") return;
    event.detail.shouldSwap = false;
    const asks = requestConfig.elt;
    replaceLater = () => asks.isConnected && window.htmx.ajax("get", requestConfig.path, { source: asks }).catch(() => {});
  });

  /* --- After every load and swap ------------------------------------------------------------------------ */
  function settle(root) {
    tick(root);
    if (logsAtEnd) settleLogs(root);
    const go = root.querySelector("[data-open-now]") || (root.matches && root.matches("[data-open-now]") ? root : null);
    const reached = probeWorkspaces(root);
    if (go) {
      // Back from there leads to the page of the workspace, which then does not open it again.
      history.replaceState(history.state, "", go.dataset.openNow);
      reached.then((yes) => { if (yes) location.assign(go.href); });
    }
    for (const form of root.querySelectorAll("[data-show-with-js]")) form.hidden = false;
  }
  document.addEventListener("htmx:load", (event) => settle(event.detail.elt));
  // Before anything is painted: the server's times are in UTC.
  // After a step back in the history, the whole page is new and there is no target.
  document.addEventListener("htmx:afterSwap", (event) => tick(event.detail.target || document));
  /* --- A slug follows the name until someone changes it -------------------------------------------------- */
  function slugOf(name, longest) {
    const ascii = name.normalize("NFKD").replace(/[^\x00-\x7f]/g, "").toLowerCase();
    return ascii.replace(/[^a-z0-9]+/g, "-").replace(/^-/, "").slice(0, longest).replace(/-$/, "");
  }
  document.addEventListener("input", (event) => {
    const form = event.target.form, slug = form && form.querySelector("[data-slug-of]");
    if (!slug) return;
    if (event.target === slug) slug.dataset.own = slug.value;
    else if (event.target.name === slug.dataset.slugOf && !slug.dataset.own && !slug.defaultValue) slug.value = slugOf(event.target.value, slug.maxLength);
  });

  /* --- Offline: what could not be sent is said, kept, and sent again ------------------------------------ */
  // htmx makes a promise for a request that it queues, which nobody gets; it rejects without a reason.
  window.addEventListener("unhandledrejection", (event) => { if (event.reason === undefined) event.preventDefault(); });
  const AGAIN_MS = 10000;
  const unsent = new Map();
  let againTimer = 0;

  function showUnsent() {
    const box = document.getElementById("unsent");
    if (box) box.hidden = unsent.size === 0;
    clearTimeout(againTimer);
    if (unsent.size) againTimer = setTimeout(() => sendAgain(false), AGAIN_MS);
  }

  /* Parts of the page are asked for by themselves; what changes something only when the reader says so. */
  function sendAgain(asked) {
    for (const [elt, { verb, path, submitter }] of [...unsent]) {
      if (!elt.isConnected) unsent.delete(elt);
      else if (verb === "get") window.htmx.ajax(verb, path, { source: elt }).catch(() => {});
      else if (asked) elt.requestSubmit(submitter);
    }
    showUnsent();
  }

  function keep(event) {
    const elt = event.detail.elt, config = event.detail.requestConfig;
    const cause = config.triggeringEvent;
    const submitter = cause && cause.detail && cause.detail.submitter || cause && cause.submitter;
    unsent.set(elt, { verb: config.verb, path: config.path, submitter: submitter });
    unsay(elt);
    showUnsent();
  }
  document.addEventListener("htmx:sendError", keep);
  document.addEventListener("htmx:afterOnLoad", (event) => {
    unsay(event.detail.elt);
    if (!event.detail.successful) return;
    if (unsent.delete(event.detail.elt)) showUnsent();
    if (unsent.size) sendAgain(false);
  });
  window.addEventListener("online", () => sendAgain(false));
  document.addEventListener("click", (event) => { if (event.target.closest("[data-send-again]")) sendAgain(true); });

  document.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    // What the page shows is gone, or no longer the reader's to see: the whole page says so.
    if (status === 403 || status === 404) location.reload();
    // The proxy answers, and nobody behind it.
    else if (status === 502 || status === 504) keep(event);
    else say(words.notRefreshed);
  });
  settle(document.body);
})();
