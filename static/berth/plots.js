/* Draws plots with uPlot from the `data-plot` of their elements (portal/common/plots.py), in the colours of their legends.
   Times of their tables are in the reader's zone, and open tables stay open over a refresh. */
(() => {
  "use strict";
  const language = document.documentElement.lang || "en";
  const clock = new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  const date = new Intl.DateTimeFormat(language, { day: "numeric", month: "short" });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone.replaceAll("_", " ");
  const DAY_S = 86400;
  /* Between daily values the axis has no times: its ticks are local midnights, these many seconds apart. */
  const WHOLE_DAYS = [1, 2, 3, 7, 14, 28, 56].map((days) => days * DAY_S);
  const STRIP_PX = 4;
  const drawn = new Map();

  const formats = [0, 1, 2].map((digits) => new Intl.NumberFormat(language, { maximumFractionDigits: digits }));
  /* Groups of digits are separated by a narrow space, as on the rest of the page. */
  const number = (value, digits) =>
    formats[digits].formatToParts(value).map((part) => (part.type === "group" ? "\u202f" : part.value)).join("");

  /* The colour of a legend key as the theme resolves it. */
  const colour = (figure, style) => {
    const key = figure.querySelector(".plot-key." + style);
    return key ? getComputedStyle(key).color : "transparent";
  };

  function times(plot) {
    const count = plot.lines[0].values.length;
    return Array.from({ length: count }, (_, place) => plot.start + plot.step * place);
  }

  /* Sums from the bottom up, the highest first, so that each area paints over the one above it. */
  function stacked(plot) {
    const sums = [];
    let below = null;
    for (const line of plot.lines) {
      below = line.values.map((value, place) => (value === null ? null : value + (below ? below[place] : 0)));
      sums.unshift(below);
    }
    return sums;
  }

  function axisTimes(_u, splits, _axis, _space, step) {
    return splits.map((at) => {
      const moment = new Date(at * 1000);
      const midnight = moment.getHours() === 0 && moment.getMinutes() === 0;
      return step >= DAY_S || midnight ? date.format(moment) : clock.format(moment);
    });
  }

  /* Stretches of time without a value, and a strip of times (allocations) at the bottom. */
  function background(u, figure, plot, x) {
    const { left, top, width, height } = u.bbox;
    const pixels = window.devicePixelRatio || 1;
    const at = (seconds) => Math.min(left + width, Math.max(left, u.valToPos(seconds, "x", true)));
    u.ctx.save();
    u.ctx.fillStyle = colour(figure, "gap");
    const empty = (place) => plot.lines.every((line) => line.values[place] === null);
    for (let place = 0; place < x.length; place += 1) {
      if (!empty(place)) continue;
      const first = place;
      while (place + 1 < x.length && empty(place + 1)) place += 1;
      const from = at(x[first] - plot.step / 2);
      u.ctx.fillRect(from, top, at(x[place] + plot.step / 2) - from, height);
    }
    u.ctx.fillStyle = colour(figure, "held");
    for (const [from, until] of plot.held) {
      const begin = at(from);
      u.ctx.fillRect(begin, top + height - STRIP_PX * pixels, Math.max(1, at(until) - begin), STRIP_PX * pixels);
    }
    u.ctx.restore();
  }

  function limits(u, figure, plot) {
    const { left, width } = u.bbox;
    u.ctx.save();
    u.ctx.strokeStyle = colour(figure, "limit");
    u.ctx.lineWidth = 1.5 * (window.devicePixelRatio || 1);
    u.ctx.setLineDash([6, 4]);
    for (const value of plot.limits) {
      const y = Math.round(u.valToPos(value, "y", true));
      u.ctx.beginPath();
      u.ctx.moveTo(left, y);
      u.ctx.lineTo(left + width, y);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  /* The values under the pointer, in the legend's words; empty without one. */
  function read(figure, plot, x, place) {
    for (const reading of figure.querySelectorAll(".plot-legend [data-line]")) {
      const value = place == null ? null : plot.lines[reading.dataset.line].values[place];
      reading.textContent = value === null || value === undefined ? "" : number(value, plot.digits);
    }
    const at = figure.querySelector(".plot-legend .at");
    if (!at) return;
    const moment = place == null ? null : new Date(x[place] * 1000);
    at.textContent = moment ? date.format(moment) + (plot.step < DAY_S ? ", " + clock.format(moment) : "") : "";
  }

  function seriesOf(figure, plot) {
    const lines = plot.stacked ? [...plot.lines].reverse() : plot.lines;
    return lines.map((line) => {
      const shade = colour(figure, line.style);
      if (plot.stacked) {
        return { fill: shade, stroke: shade, width: 0, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) };
      }
      const peak = line.style === "peak";
      return { stroke: peak ? "transparent" : shade, width: peak ? 0 : 1.75, points: { size: 3 } };
    });
  }

  /* The area between the mean and the peak, where a plot has both. */
  function bandsOf(figure, plot) {
    const peak = plot.stacked ? -1 : plot.lines.findIndex((line) => line.style === "peak");
    const mean = plot.lines.findIndex((line) => line.style === "mean");
    if (peak < 0 || mean < 0) return [];
    const fill = colour(figure, "peak").replace("rgb(", "rgba(").replace(")", ", 0.2)");
    return [{ series: [peak + 1, mean + 1], fill }];
  }

  function draw(element) {
    const figure = element.closest("figure");
    const plot = JSON.parse(element.dataset.plot);
    const x = times(plot);
    const look = getComputedStyle(element);
    const font = `${look.fontSize} ${look.fontFamily}`;
    const axis = {
      stroke: look.color, font, gap: 4,
      grid: { stroke: look.borderTopColor, width: 1 },
      ticks: { stroke: look.borderTopColor, width: 1, size: 4 },
    };
    const highest = [...plot.lines.flatMap((line) => line.values), ...plot.limits].reduce((a, b) => Math.max(a, b || 0), 0);
    element.textContent = "";
    const picture = new uPlot(
      {
        width: element.clientWidth, height: element.clientHeight,
        padding: [8, 8, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
        scales: {
          x: { time: true, range: (_u, min, max) => [min - (plot.stacked ? 0 : plot.step / 2), max + plot.step / 2] },
          y: { range: (_u, _min, max) => [0, plot.top || Math.max(max || 0, highest) * 1.05 || 1] },
        },
        axes: [
          { ...axis, size: 28, values: axisTimes, space: 56, ...(plot.step >= DAY_S && { incrs: WHOLE_DAYS }) },
          { ...axis, size: 44, space: 28, values: (_u, splits) => splits.map((value) => number(value, 2)) },
        ],
        series: [{}, ...seriesOf(figure, plot)],
        bands: bandsOf(figure, plot),
        hooks: {
          drawClear: [(u) => background(u, figure, plot, x)],
          draw: [(u) => limits(u, figure, plot)],
          setCursor: [(u) => read(figure, plot, x, u.cursor.idx)],
        },
      },
      [x, ...(plot.stacked ? stacked(plot) : plot.lines.map((line) => line.values))],
      element,
    );
    drawn.set(element, picture);
  }

  function redraw(element) {
    drawn.get(element)?.destroy();
    draw(element);
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const picture = drawn.get(target);
      if (picture && target.clientWidth && picture.width !== target.clientWidth) {
        picture.setSize({ width: target.clientWidth, height: target.clientHeight });
      }
    }
  });

  /* Draws what has come and forgets what has gone with an update of the page. */
  function refresh() {
    if (typeof uPlot === "undefined") {
      // The library did not load: the tables have the same figures.
      for (const element of document.querySelectorAll("[data-plot]")) element.hidden = true;
      return;
    }
    for (const [element, picture] of drawn) {
      if (element.isConnected) continue;
      sizes.unobserve(element);
      picture.destroy();
      drawn.delete(element);
    }
    for (const element of document.querySelectorAll("[data-plot]")) {
      if (drawn.has(element)) continue;
      draw(element);
      sizes.observe(element);
    }
  }

  function showTimes(root) {
    for (const node of root.querySelectorAll("[data-clock]")) node.textContent = clock.format(new Date(node.dataset.clock));
    for (const node of root.querySelectorAll("[data-zone]")) node.textContent = node.dataset.zone.replace("%s", zone);
  }

  /* Tables that are open before a part is replaced: their id, and how far each is scrolled. */
  let open = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    open = [...event.detail.target.querySelectorAll(".plot details[open]")].map((node) => [
      node.id, node.querySelector(".table-wrap")?.scrollTop || 0,
    ]);
  });

  function reopen(root) {
    for (const [id, scrolled] of open) {
      const node = root.querySelector("#" + CSS.escape(id));
      if (!node) continue;
      node.open = true;
      const wrap = node.querySelector(".table-wrap");
      if (wrap) wrap.scrollTop = scrolled;
    }
    open = [];
  }

  const recolour = () => [...drawn.keys()].forEach(redraw);
  new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  for (const query of ["(prefers-color-scheme: dark)", "(forced-colors: active)"]) {
    matchMedia(query).addEventListener("change", recolour);
  }
  document.addEventListener("htmx:afterSwap", (event) => {
    reopen(event.detail.target || document);
    showTimes(event.detail.target || document);
    refresh();
  });
  showTimes(document);
  refresh();
})();
