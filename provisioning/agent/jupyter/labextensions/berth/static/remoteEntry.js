/*
 * JupyterLab's extension of Berth: the workspace's name, team and use at the top, the ways to stop it and back to
 * the portal, the time that is left with a button for more, and a line for what Berth has to say. It asks
 * `/.berth/workspace` and `/.berth/extend` of its own origin, nothing else.
 *
 * It is a module federation container written by hand, so that nothing has to be built: `init` is given the
 * modules that JupyterLab shares, `get` answers with the factory of a module.
 */
(() => {
  "use strict";

  const ASK_EVERY_MS = 15000;
  const ASK_AGAIN_MS = 3000;
  const SAYS_PADDING_PX = 6;
  const PHONE = "(max-width: 760px)";
  const TERMINAL_LAYOUT = "terminal";
  const TERMINAL_NAME = "1";
  const KERNEL = /\/api\/kernels\/[0-9a-f-]+$/;
  const UNANSWERED = [401, 502, 504];
  const ENDED = ["stopping", "stopped", "terminating", "terminated", "failed"];
  const STYLE = `
    .berth-bar { display: flex; align-items: center; gap: 10px; padding: 0 10px; margin-left: auto;
      font-size: var(--jp-ui-font-size1); color: var(--jp-ui-font-color1); white-space: nowrap; overflow: hidden; }
    #jp-top-panel > .berth-bar { flex: 0 1 auto; }
    .berth-name { font-weight: 600; overflow: hidden; text-overflow: ellipsis; min-width: 3em; }
    .berth-team { color: var(--jp-ui-font-color2); overflow: hidden; text-overflow: ellipsis; }
    .berth-use { color: var(--jp-ui-font-color2); font-variant-numeric: tabular-nums; }
    .berth-use.full { color: var(--jp-error-color1); font-weight: 600; }
    .berth-bar a { color: var(--jp-content-link-color); text-decoration: none; line-height: 24px; padding: 0 4px; }
    .berth-bar a:hover { text-decoration: underline; }
    .berth-left { color: var(--jp-ui-font-color2); font-variant-numeric: tabular-nums; }
    .berth-left.near { color: var(--jp-ui-font-color1); font-weight: 600; }
    .berth-bar button { font: inherit; color: var(--jp-ui-font-color1); background: var(--jp-layout-color2);
      border: 1px solid var(--jp-border-color1); border-radius: 3px; line-height: 22px; padding: 0 8px; cursor: pointer; }
    .berth-bar button:hover { background: var(--jp-layout-color3); }
    .berth-bar button[hidden] { display: none; }
    .berth-bar button:focus-visible, .berth-bar a:focus-visible { outline: 2px solid var(--jp-brand-color1); }
    .berth-says { padding: ${SAYS_PADDING_PX}px 12px; overflow: hidden; font-size: var(--jp-ui-font-size1); color: var(--jp-ui-font-color1);
      background: var(--jp-layout-color2); border-left: 4px solid var(--jp-warn-color1); }
    .berth-says.bad { border-left-color: var(--jp-error-color1); font-weight: 600; }
    .berth-says a { color: var(--jp-content-link-color); text-decoration: underline; }
    @media ${PHONE} {
      #jp-top-panel > .berth-bar { position: absolute !important; z-index: 10; right: 0; left: auto !important; width: auto !important;
        height: 100%; background: var(--jp-layout-color1); }
      .berth-use, .berth-name, .berth-team, .berth-left:not(.near) { display: none; }
    }
  `;

  let shared = {};

  /** A module that JupyterLab shares, whatever its version is here. */
  async function load(name) {
    const versions = Object.values(shared[name] || {});
    if (!versions.length) {
      throw new Error(`JupyterLab does not share ${name}`);
    }
    return (await versions[versions.length - 1].get())();
  }

  function gib(mib) {
    return mib >= 1024 ? (mib / 1024).toFixed(1) + " GiB" : mib + " MiB";
  }

  function useOf(memory) {
    return memory.used_mib === null ? "" : `${gib(memory.used_mib)} of ${gib(memory.limit_mib)}`;
  }

  function gpuUse(gpus) {
    const parts = gpus.map((gpu, index) => {
      const name = gpus.length > 1 ? `GPU ${index}` : "GPU";
      const busy = gpu.utilization_percent === null ? "" : ` ${gpu.utilization_percent} %`;
      const held =
        gpu.memory_used_mib === null || gpu.memory_total_mib === null
          ? ""
          : ` · ${gib(gpu.memory_used_mib)} of ${gib(gpu.memory_total_mib)}`;
      return name + busy + held;
    });
    if (gpus.length <= 2) {
      return parts.join("  ");
    }
    const busy = gpus.map(gpu => (gpu.utilization_percent === null ? "–" : gpu.utilization_percent));
    return `${gpus.length} GPUs ${busy.join(" ")} %`;
  }

  function element(tag, className, text) {
    const made = document.createElement(tag);
    made.className = className;
    if (text) {
      made.textContent = text;
    }
    return made;
  }

  function link(text, title) {
    const made = element("a", "", text);
    made.title = title;
    return made;
  }

  /** The bar at the top and the line below it; `show` fills both from an answer, `again` asks for another one. */
  function build(Widget, again) {
    const style = element("style");
    style.textContent = STYLE;
    document.head.appendChild(style);
    const bar = new Widget({ node: element("div", "berth-bar") });
    bar.id = "berth-bar";
    const name = element("span", "berth-name");
    const team = element("span", "berth-team");
    const memory = element("span", "berth-use");
    const gpus = element("span", "berth-use");
    const left = element("span", "berth-left");
    const extend = element("button", "");
    extend.type = "button";
    extend.hidden = true;
    const stop = link("Stop", "Stop this workspace. Files are kept.");
    const back = link("Berth", "Open this workspace in Berth");
    bar.node.setAttribute("role", "group");
    bar.node.setAttribute("aria-label", "Workspace");
    bar.node.append(name, team, memory, gpus, left, extend, stop, back);
    const says = new Widget({ node: element("div", "berth-says") });
    says.id = "berth-says";
    says.node.setAttribute("role", "status");
    says.hide();
    let said = "";
    let refused = "";
    /** JupyterLab gives a widget at its top its least height and no more: that of its lines, once it has a width. */
    function makeRoom() {
      if (!says.node.clientWidth) {
        return;
      }
      const lines = [...says.node.children].reduce((height, line) => height + line.offsetHeight, 0);
      const least = `${lines + 2 * SAYS_PADDING_PX}px`;
      if (says.node.style.minHeight !== least) {
        says.node.style.minHeight = least;
        says.parent?.fit();
      }
    }
    new ResizeObserver(makeRoom).observe(says.node);
    extend.addEventListener("click", async () => {
      extend.disabled = true;
      try {
        refused = await extendIt();
      } catch {
        refused = "Berth does not answer. Try again in a moment.";
      }
      extend.disabled = false;
      again();
    });
    return {
      bar,
      says,
      show(seen) {
        name.textContent = seen.name;
        name.title = seen.name;
        team.textContent = seen.team;
        memory.textContent = useOf(seen.memory);
        memory.title = "Memory used by this workspace";
        memory.classList.toggle("full", seen.memory.used_mib > 0.9 * seen.memory.limit_mib);
        gpus.textContent = gpuUse(seen.gpus);
        stop.href = seen.stop;
        back.href = seen.page;
        left.textContent = seen.ends ? seen.ends.left : "";
        left.title = seen.ends ? `Stops ${new Date(seen.ends.at).toLocaleString()}` : "";
        left.classList.toggle("near", Boolean(seen.ends && seen.ends.near));
        extend.textContent = seen.ends ? seen.ends.extend : "";
        extend.hidden = !extend.textContent;
        const texts = seen.messages.map(message =>
          message.at ? `${message.text} (${new Date(message.at).toLocaleTimeString()})` : message.text
        );
        if (refused) {
          texts.unshift(refused);
        }
        if (texts.join("\n") !== said) {
          said = texts.join("\n");
          says.node.replaceChildren(...texts.map(text => element("div", "", text)));
        }
        says.node.classList.toggle("bad", seen.messages.some(message => message.tone === "bad"));
        says.setHidden(!texts.length);
        makeRoom();
      },
      showSignedOut(address) {
        const line = element("div", "", "You are signed out. Unsaved changes are still in this tab. ");
        const again = element("a", "", "Sign in again in another tab");
        again.href = address;
        again.target = "_blank";
        again.rel = "noopener";
        line.append(again, ", then save here.");
        said = null;
        says.node.replaceChildren(line);
        says.node.classList.add("bad");
        says.show();
        makeRoom();
      }
    };
  }

  /** The session in this workspace has ended; `address` starts another one. */
  class SignedOut extends Error {
    constructor(address) {
      super("Signed out");
      this.address = address;
    }
  }

  async function ask() {
    const answer = await fetch("/.berth/workspace", { headers: { Accept: "application/json" }, cache: "no-store" });
    if (answer.status === 401) {
      throw new SignedOut((await answer.json()).link);
    }
    return answer.ok ? answer.json() : null;
  }

  /** Has the workspace live for longer: what was said against it, or "". */
  async function extendIt() {
    const answer = await fetch("/.berth/extend", { method: "POST", headers: { Accept: "application/json" } });
    if (answer.ok) {
      return "";
    }
    return (await answer.json()).message || "The workspace could not be extended. See its page in Berth.";
  }

  /** Leaves for the workspace's page in the portal once it has ended: whether it did. */
  function left(seen) {
    if (seen && ENDED.includes(seen.state)) {
      window.location.assign(seen.page);
      return true;
    }
    return false;
  }

  /**
   * JupyterLab takes a kernel for dead if it cannot ask about it. Report a missing session, and a portal that is being
   * restarted, as a failure of the network, after which JupyterLab asks again.
   */
  function keepKernels(settings) {
    const fetchAnswer = settings.fetch;
    settings.fetch = async (...request) => {
      const answer = await fetchAnswer(...request);
      if (UNANSWERED.includes(answer.status) && KERNEL.test(new URL(answer.url).pathname)) {
        throw new TypeError(`No answer about a kernel: ${answer.status}`);
      }
      return answer;
    };
  }

  /**
   * Connect kernels and terminals again whose connection is in one of these states. JupyterLab leaves them disconnected
   * after some tries, and at once where a proxy has closed the WebSocket with code 1000 or 1001.
   */
  function reconnect(app, states) {
    for (const widget of app.shell.widgets("main")) {
      for (const connection of [widget.sessionContext?.session?.kernel, widget.content?.session]) {
        if (connection?.reconnect && !connection.isDisposed && states.includes(connection.connectionStatus)) {
          connection.reconnect().catch(() => {});
        }
      }
    }
  }

  function activate(app, Widget) {
    const view = build(Widget, () => look());
    app.shell.add(view.bar, "top", { rank: 1000 });
    app.shell.add(view.says, "header", { rank: 1 });
    keepKernels(app.serviceManager.serverSettings);
    let timer = 0;
    let signedOut = false;
    async function look() {
      window.clearTimeout(timer);
      let wait = ASK_EVERY_MS;
      try {
        const seen = await ask();
        if (left(seen)) {
          return;
        }
        if (seen) {
          view.show(seen);
          reconnect(app, signedOut ? ["disconnected", "connecting"] : ["disconnected"]);
          signedOut = false;
        }
      } catch (error) {
        wait = ASK_AGAIN_MS; // the portal is away for a moment
        if (error instanceof SignedOut) {
          signedOut = true;
          view.showSignedOut(error.address);
        }
      }
      if (!document.hidden) {
        timer = window.setTimeout(look, wait);
      }
    }
    document.addEventListener("visibilitychange", () => document.hidden || look());
    look();
  }

  /**
   * A page of one terminal, where the address names the workspace of JupyterLab that the template “Terminal” opens.
   * Each page shows the same shell, which goes on while none is open; where it has ended, another one begins.
   */
  function showTerminal(app, PageConfig) {
    if (PageConfig.getOption("workspace") === TERMINAL_LAYOUT) {
      app.restored.then(async () => {
        await app.commands.execute("terminal:open", { name: TERMINAL_NAME });
        // A phone has no room for the bars at the sides; JupyterLab's menu brings them back.
        for (const side of window.matchMedia(PHONE).matches ? ["left", "right"] : []) {
          if (app.shell.isSideTabBarVisible(side)) {
            await app.commands.execute("application:toggle-side-tabbar", { side });
          }
        }
      });
    }
  }

  /** Waits until a kernel that has been asked for is there, or will not be; the cell says so by its prompt. */
  async function started(context, cell) {
    const missing = () =>
      !context.isDisposed && !context.hasNoKernel && !(context.session && context.session.kernel);
    if (!missing()) {
      return;
    }
    cell.setPrompt("*");
    const signals = [context.kernelChanged, context.disposed];
    await new Promise(resolve => {
      const look = () => {
        if (!missing()) {
          signals.forEach(signal => signal.disconnect(look));
          resolve();
        }
      };
      signals.forEach(signal => signal.connect(look));
    });
    if (!cell.isDisposed) {
      cell.setPrompt(""); // one that runs has it set again
    }
  }

  /**
   * The executor of cells, or null where it is not ours to give. JupyterLab drops a cell that is run between the
   * request for its notebook's kernel and the answer, without a word; with this one the cell waits for the answer.
   */
  async function cellExecutor() {
    try {
      const [notebook, { PageConfig }] = await Promise.all(["@jupyterlab/notebook", "@jupyterlab/coreutils"].map(load));
      // Where JupyterLab's own is switched off, another extension has put its own in place of it.
      if (!notebook.INotebookCellExecutor || PageConfig.Extension.isDisabled("@jupyterlab/notebook-extension:cell-executor")) {
        return null;
      }
      return {
        id: "berth:cell-executor",
        description: "Runs a cell once the requested kernel of its notebook is ready.",
        autoStart: true,
        provides: notebook.INotebookCellExecutor,
        activate: () => ({
          async runCell(options) {
            if (options.sessionContext && options.cell.model.type === "code") {
              await started(options.sessionContext, options.cell);
            }
            return options.cell.isDisposed ? false : notebook.runCell(options);
          }
        })
      };
    } catch {
      return null; // a JupyterLab that has no executor
    }
  }

  const modules = {
    "./extension": async () => {
      const [{ Widget }, application, { showErrorMessage }, { PageConfig }] = await Promise.all(
        ["@lumino/widgets", "@jupyterlab/application", "@jupyterlab/apputils", "@jupyterlab/coreutils"].map(load)
      );
      const executor = await cellExecutor();
      const bar = {
        id: "berth:workspace",
        description: "Shows the workspace, its usage and messages from Berth.",
        autoStart: true,
        activate: app => activate(app, Widget)
      };
      const lost = {
        id: "berth:connection-lost",
        description: "Opens the workspace's page when it has ended, instead of an error.",
        autoStart: true,
        provides: application.IConnectionLost,
        activate: () => async (_manager, failure) => {
          try {
            if (left(await ask())) {
              return;
            }
          } catch (error) {
            if (error instanceof SignedOut) {
              return; // the line below the bar says so
            }
            // The way to the portal is gone, too: JupyterLab's own words are true.
          }
          await showErrorMessage("Server Connection Error", `The connection to this workspace was lost. ${failure}`);
        }
      };
      const terminal = {
        id: "berth:terminal",
        description: "Opens a terminal if the template is one.",
        autoStart: true,
        activate: app => showTerminal(app, PageConfig)
      };
      const plugins = [bar, terminal, ...(application.IConnectionLost ? [lost] : []), ...(executor ? [executor] : [])];
      const found = { __esModule: true, default: plugins };
      return () => found;
    }
  };

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.berth = {
    init: scope => {
      shared = scope;
    },
    get: name => (modules[name] ? modules[name]() : Promise.reject(new Error(`Berth has no module ${name}`)))
  };
})();
