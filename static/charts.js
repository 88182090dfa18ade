// Draws every [data-chart] with Plotly in our colours, once it comes into view. Plotly is fetched for the first of them.
//
// The data is the text of a [data-spec] child ({% chart spec %} writes it), or of the element whose id is data-chart:
//
//   kind      "line" | "band" | "bar" | "forest" | "histogram"
//   title     what is shown; key: what stays the same chart after an htmx swap (the zoom is kept)
//   x, y      {title, unit}; y may have a range, and log for a logarithmic scale
//   series    [{name, role: "baseline" | "candidate" | "plain", tone?: "ok" | "warn" | "bad",
//               x: [], y: [], low?: [], high?: [], links?: [], margin?: []}]       at most six are drawn; null is a gap
//             forest: x = differences, y = names, margin = the margin of each row; histogram: x = raw values
//   marks     [{x, label}]   moments worth a line; links: those of the first series
//   baseline  number, a dashed line; baseline_label: its name in place of "baseline" and the number
//   stack     bars on top of each other; height: "short" | "tall"; note: a word beside the title
//
// Plotly reads some HTML in labels, and agents write labels: every text passes `plain` first.

(() => {
  "use strict";

  const { onContent } = window.Flywheel;
  const MOST = 6;
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x"];
  const plain = (text) => String(text ?? "").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const figures = new Map(); // figure → its spec

  let loading = null;
  function loadPlotly() {
    loading ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = document.querySelector("meta[name=flywheel-plotly]").content;
      script.onload = () => resolve(window.Plotly);
      script.onerror = reject;
      document.head.append(script);
    });
    return loading;
  }

  // ── Colours: whatever the style sheet says now ───────────────────────────────────────────────────────────────

  function readTheme(figure) {
    const probe = document.createElement("i");
    figure.append(probe);
    const color = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const names = ["text", "text-2", "line", "line-strong", "bg-card", "accent", "base", "ok", "warn", "bad"];
    const theme = Object.fromEntries(names.map((name) => [name, color(name)]));
    theme.series = Array.from({ length: MOST }, (_, index) => color(`series-${index + 1}`));
    theme.font = getComputedStyle(figure).fontFamily;
    probe.remove();
    return theme;
  }

  const faded = (rgb, alpha) => rgb.replace(/^rgba?\(([^)]+)\)$/, (_, parts) => `rgba(${parts.split(/[, ]+/).slice(0, 3).join(", ")}, ${alpha})`);

  /** The class of a swatch and the property of a colour: the same thing has the same colour on every page. */
  function colorName(series, plainIndex) {
    if (series.tone) return series.tone;
    if (series.role === "baseline") return "base";
    if (series.role === "candidate") return "accent";
    return `series-${(plainIndex % MOST) + 1}`;
  }

  // ── Numbers and words ────────────────────────────────────────────────────────────────────────────────────────

  function write(value) {
    if (value === null || value === undefined) return "–";
    if (!isNumber(value)) return String(value);
    const text = Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en-GB") : String(Number(value.toPrecision(4)));
    return text.replaceAll(",", "\u202f").replace("-", "−");
  }
  const unitOf = (axis) => (axis?.unit ? ` ${axis.unit}` : "");
  const axisTitle = (axis) => plain([axis?.title, axis?.unit && axis.title ? `(${axis.unit})` : axis?.unit].filter(Boolean).join(" "));

  function axisType(values) {
    const known = values.filter((value) => value !== null && value !== undefined);
    if (known.every(isNumber)) return "linear";
    return known.every((value) => /^\d{4}-\d\d/.test(value)) ? "date" : "category";
  }

  // ── From our spec to Plotly's traces ─────────────────────────────────────────────────────────────────────────

  function linesOf(spec, series, color, index) {
    const dash = series.role === "baseline" ? "dash" : "solid";
    const points = series.x.length;
    const dotted = spec.kind !== "band" && (points <= 2 || (points <= 40 && series.role !== "baseline"));
    const name = plain(series.name);
    const shared = { type: "scatter", x: series.x, legendgroup: name };
    const traces = [];
    const lonely = series.y.filter(isNumber).length <= 2; // no band is seen of a point
    if (series.low && series.high && !lonely) {
      const edge = { ...shared, mode: "lines", line: { width: 0 }, hoverinfo: "skip", connectgaps: false };
      traces.push({ ...edge, y: series.low }, { ...edge, y: series.high, fill: "tonexty", fillcolor: faded(color, 0.15) });
    }
    traces.push({
      ...shared,
      name,
      y: series.y,
      mode: dotted ? "lines+markers" : "lines",
      line: { color, width: 1.75, dash },
      marker: { color, size: 5, symbol: SYMBOLS[index % SYMBOLS.length] },
      error_y: lonely ? whiskers(series.y, series, color) : { visible: false },
      connectgaps: false,
      text: tells(spec.y, series, series.y),
      hovertemplate: "%{text}<extra></extra>",
      links: series.links,
    });
    return traces;
  }

  function barsOf(spec, series, color) {
    return [
      {
        type: "bar",
        name: plain(series.name),
        x: series.x.map((value) => (isNumber(value) ? value : plain(value))),
        y: series.y,
        marker: { color: faded(color, 0.85) },
        error_y: whiskers(series.y, series, color),
        text: tells(spec.y, series, series.y),
        textposition: "none",
        hovertemplate: "%{text}<extra></extra>",
        links: series.links,
      },
    ];
  }

  function forestOf(spec, series, color, index) {
    const names = series.y.map(plain);
    const traces = [
      {
        type: "scatter",
        mode: "markers",
        name: plain(series.name),
        x: series.x,
        y: names,
        marker: { color, size: 7, symbol: SYMBOLS[index % SYMBOLS.length] },
        error_x: whiskers(series.x, series, color),
        text: tells(spec.x, series, series.x),
        hovertemplate: "%{text}<extra></extra>",
        links: series.links,
      },
    ];
    if (series.margin) {
      traces.push({
        type: "scatter",
        mode: "markers",
        x: series.margin,
        y: names,
        marker: { symbol: "line-ns-open", size: 14, color: spec.theme.bad, line: { width: 1.5 } },
        text: series.margin.map((value) => `margin ${write(value)}${unitOf(spec.x)}`),
        hovertemplate: "%{text}<extra></extra>",
      });
    }
    return traces;
  }

  function whiskers(values, series, color) {
    if (!series.low || !series.high) return { visible: false };
    return {
      type: "data",
      symmetric: false,
      array: values.map((value, at) => (isNumber(value) && isNumber(series.high[at]) ? series.high[at] - value : null)),
      arrayminus: values.map((value, at) => (isNumber(value) && isNumber(series.low[at]) ? value - series.low[at] : null)),
      color,
      thickness: 1.5,
      width: 3,
    };
  }

  function tells(axis, series, values) {
    return values.map((value, at) => {
      const interval = isNumber(series.low?.[at]) ? ` (${write(series.low[at])} to ${write(series.high[at])})` : "";
      return plain(`${series.name ? `${series.name} ` : ""}${write(value)}${unitOf(axis)}${interval}`);
    });
  }

  /** Plotly's basic bundle has no histogram: equal bins by Freedman and Diaconis, at least 5 and at most 40. */
  function binned(spec) {
    const every = spec.series.flatMap((series) => series.x.filter(isNumber)).sort((a, b) => a - b);
    if (every.length === 0) return { ...spec, kind: "bar", series: [] };
    const [low, high] = [every[0], every.at(-1)];
    const quartile = (share) => every[Math.floor(share * (every.length - 1))];
    const ideal = (2 * (quartile(0.75) - quartile(0.25))) / Math.cbrt(every.length);
    const count = high === low ? 1 : Math.max(5, Math.min(40, Math.ceil((high - low) / (ideal || (high - low) / 10))));
    const width = (high - low) / count || 1;
    const centres = Array.from({ length: count }, (_, at) => Number((low + (at + 0.5) * width).toPrecision(6)));
    const series = spec.series.map((each) => {
      const y = new Array(count).fill(0);
      for (const value of each.x) if (isNumber(value)) y[Math.min(count - 1, Math.floor((value - low) / width))] += 1;
      return { ...each, x: centres, y };
    });
    return { ...spec, kind: "bar", dense: true, series, y: spec.y || { title: "count" } };
  }

  function axis(theme, about, type, more = {}) {
    return {
      type,
      title: { text: axisTitle(about), font: { size: 11, color: theme["text-2"] }, standoff: 8 },
      tickfont: { size: 11, color: theme["text-2"] },
      gridcolor: theme.line,
      linecolor: theme["line-strong"],
      zeroline: false,
      automargin: true,
      nticks: 7,
      ...more,
    };
  }

  const DAY_MS = 86_400_000;

  /** One day alone would be spread over the axis in milliseconds: it gets a day of room on both sides. */
  function aroundOneDay(values) {
    const days = [...new Set(values.map((value) => String(value).slice(0, 10)))];
    if (days.length !== 1) return {};
    const range = [-1, 1].map((step) => new Date(Date.parse(days[0]) + step * DAY_MS).toISOString().slice(0, 10));
    return { range, dtick: DAY_MS, tickformat: "%-d %b %Y" };
  }

  function layoutOf(spec, theme) {
    const forest = spec.kind === "forest";
    const scaled = (value) => (spec.y?.log ? Math.log10(value) : value); // where Plotly wants exponents
    const xs = spec.series.flatMap((series) => series.x);
    const dashed = { color: theme.base, width: 1.25, dash: "dash" };
    const upright = (x, line) => ({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line, layer: "below" });
    const shapes = (spec.marks || []).map((mark) => upright(mark.x, { color: theme["line-strong"], width: 1, dash: "dot" }));
    const annotations = (spec.marks || []).map((mark) => ({ x: mark.x, y: 1, yref: "paper", yanchor: "bottom", xanchor: "left", text: plain(mark.label), showarrow: false, font: { size: 10, color: theme["text-2"] } }));
    if (forest) shapes.push(upright(spec.baseline ?? 0, dashed));
    else if (isNumber(spec.baseline)) {
      shapes.push({ type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: spec.baseline, y1: spec.baseline, line: dashed });
      annotations.push({ x: 1, xref: "paper", xanchor: "right", y: scaled(spec.baseline), yanchor: "bottom", text: plain(spec.baseline_label || `baseline ${write(spec.baseline)}`), showarrow: false, bgcolor: faded(theme["bg-card"], 0.8), font: { size: 10, color: theme.base } });
    }
    const xType = forest ? "linear" : axisType(xs);
    const scale = spec.y?.range ? { range: spec.y.range.map(scaled), ...(spec.y.log ? { dtick: 1, exponentformat: "none" } : {}) } : spec.kind === "bar" ? { rangemode: "tozero" } : {};
    return {
      autosize: true,
      margin: { l: 8, r: 12, t: annotations.length ? 18 : 8, b: 8, pad: 0 },
      paper_bgcolor: "rgba(0, 0, 0, 0)",
      plot_bgcolor: "rgba(0, 0, 0, 0)",
      font: { family: theme.font, size: 11, color: theme.text },
      showlegend: false,
      hovermode: forest || spec.kind === "bar" ? "closest" : "x unified",
      hoverlabel: { bgcolor: theme["bg-card"], bordercolor: theme["line-strong"], font: { family: theme.font, size: 12, color: theme.text }, align: "left" },
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      barmode: spec.stack ? "stack" : "group",
      bargap: spec.dense ? 0.05 : 0.35,
      uirevision: "kept",
      shapes,
      annotations,
      modebar: { bgcolor: "rgba(0, 0, 0, 0)", color: theme["text-2"], activecolor: theme.accent },
      xaxis: axis(theme, spec.x, xType, { spikecolor: theme["line-strong"], spikethickness: 1, spikedash: "dot", showgrid: forest || xType !== "category", ...(xType === "category" ? { nticks: 0 } : xType === "date" ? aroundOneDay(xs) : {}) }),
      yaxis: forest ? axis(theme, spec.y, "category", { autorange: "reversed", showgrid: false, nticks: 0, showline: false }) : axis(theme, spec.y, spec.y?.log ? "log" : "linear", scale),
    };
  }

  const CONFIG = { displaylogo: false, displayModeBar: "hover", modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]], showTips: false, doubleClick: "reset" };

  // ── Drawing ──────────────────────────────────────────────────────────────────────────────────────────────────

  function draw(figure, Plotly) {
    const raw = figures.get(figure);
    const spec = raw.kind === "histogram" ? binned(raw) : { ...raw };
    const theme = (spec.theme = readTheme(figure));
    spec.series = (spec.series || []).map((series, at) => (at === 0 && spec.links && !series.links ? { ...series, links: spec.links } : series));
    const place = figure.querySelector("[data-chart-plot]");
    const hasData = spec.series.some((series) => (spec.kind === "forest" ? series.x : series.y)?.some(isNumber));
    place.classList.toggle("is-nothing", !hasData);
    if (!hasData) {
      if (place.data) Plotly.purge(place);
      place.textContent = raw.empty || "Nothing to draw yet";
      return;
    }
    if (!place.data) place.textContent = "";
    let plainIndex = 0;
    const drawn = spec.series.slice(0, MOST).map((series) => {
      const name = colorName(series, series.role === "baseline" || series.role === "candidate" || series.tone ? 0 : plainIndex++);
      return { series, name, color: theme[name] || theme.series[Number(name.slice(7)) - 1] };
    });
    const traceOf = { bar: barsOf, forest: forestOf }[spec.kind] || linesOf;
    const traces = drawn.flatMap(({ series, color }, index) => traceOf(spec, series, color, index));
    if (spec.kind === "forest") place.style.height = `${Math.max(130, 64 + 26 * new Set(spec.series.flatMap((series) => series.y)).size)}px`;
    spec.shown = { ...spec, series: drawn.map((each) => each.series) };
    Plotly.react(place, traces, layoutOf(spec.shown, theme), CONFIG);
    listenTo(place);
    tellLegend(figure, drawn, spec.series.slice(MOST));
    place.role = "group"; // what is in it can be reached: the links of its points, its buttons
    place.ariaLabel = `${spec.title || "chart"}: ${drawn.map(({ series }) => series.name).filter(Boolean).join(", ")}. The table has the numbers.`;
  }

  const sizes = new ResizeObserver((entries) => {
    requestAnimationFrame(() => {
      for (const { target } of entries) if (target.isConnected && target.data && target.offsetWidth > 0) window.Plotly.Plots.resize(target);
    });
  });

  function listenTo(place) {
    place.classList.toggle("has-links", place.data.some((trace) => trace.links));
    if (place.dataset.listens) return;
    place.dataset.listens = "yes";
    sizes.observe(place);
    place.on("plotly_click", ({ points: [point] }) => {
      const link = point.data.links?.[point.pointIndex];
      if (isOurs(link)) location.assign(link);
    });
  }

  const isOurs = (link) => typeof link === "string" && new URL(link, location.href).origin === location.origin;

  function tellLegend(figure, drawn, rest) {
    figure.querySelector(".chart-legend")?.remove();
    const hasMargin = drawn.some(({ series }) => series.margin);
    if (drawn.length < 2 && !hasMargin) return;
    const legend = document.createElement("div");
    legend.className = "chart-legend";
    for (const { series, name } of drawn) {
      const entry = document.createElement("span");
      entry.className = `swatch swatch-${name}${series.role === "baseline" ? " dashed" : ""}`;
      entry.textContent = series.name;
      legend.append(entry);
    }
    if (hasMargin) legend.append(Object.assign(document.createElement("span"), { className: "swatch swatch-margin", textContent: "margin" }));
    if (rest.length > 0) {
      const more = document.createElement("span");
      more.textContent = `in the table only: ${rest.map((series) => series.name).join(", ")}`;
      legend.append(more);
    }
    figure.append(legend);
  }

  // ── The same numbers as a table ──────────────────────────────────────────────────────────────────────────────

  function tableOf(raw) {
    const spec = raw.kind === "histogram" ? binned(raw) : raw;
    const forest = spec.kind === "forest";
    const [keys, values, about, valueAxis] = forest ? ["y", "x", spec.y, spec.x] : ["x", "y", spec.x, spec.y];
    const rows = new Map();
    spec.series.forEach((series, column) =>
      series[keys].forEach((key, at) => {
        const row = rows.get(key) || { cells: [], link: null };
        row.cells[column] = write(series[values][at]) + (isNumber(series.low?.[at]) ? ` (${write(series.low[at])} to ${write(series.high[at])})` : "");
        row.link ||= series.links?.[at] || (column === 0 && spec.links?.[at]);
        rows.set(key, row);
      }),
    );
    const table = document.createElement("table");
    table.className = "data";
    const head = table.createTHead().insertRow();
    const names = spec.series.map((series) => [series.name || valueAxis?.title, valueAxis?.unit && `(${valueAxis.unit})`].filter(Boolean).join(" "));
    for (const [at, name] of [about?.title || "", ...names].entries()) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      if (at > 0) cell.className = "num";
      head.append(cell);
    }
    const body = table.createTBody();
    for (const [key, { cells, link }] of rows) {
      const row = body.insertRow();
      const first = row.insertCell();
      const place = isOurs(link) ? first.appendChild(Object.assign(document.createElement("a"), { href: link })) : first;
      place.textContent = write(key);
      for (let column = 0; column < spec.series.length; column++) {
        const cell = row.insertCell();
        cell.className = "num";
        cell.textContent = cells[column] ?? "–";
      }
    }
    const scroll = document.createElement("div");
    scroll.className = "chart-table table-scroll";
    scroll.append(table);
    return scroll;
  }

  function showTable(figure, show) {
    figure.querySelector(".chart-table")?.remove();
    if (show) figure.append(tableOf(figures.get(figure)));
    figure.querySelector("[data-chart-plot]").hidden = show;
    const button = figure.querySelector("[data-chart-table]");
    if (!button) return;
    button.textContent = show ? "Chart" : "Table";
    button.setAttribute("aria-expanded", String(show));
  }

  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("[data-chart-table]");
    if (button) showTable(button.closest("[data-chart]"), button.getAttribute("aria-expanded") !== "true");
  });

  // ── Pages, swaps and themes ──────────────────────────────────────────────────────────────────────────────────

  /** The plots that a swap is about to remove, by key: the new figure of the same key takes its plot over. */
  const leaving = new Map();
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    for (const figure of figures.keys()) {
      if (!detail.target.contains(figure)) continue;
      const plot = figure.querySelector("[data-chart-plot]");
      const asTable = figure.querySelector(".chart-table") !== null;
      if (plot?.data) leaving.set(figure.dataset.chartKey, { plot, asTable });
    }
  });

  function read(figure) {
    const source = figure.querySelector("[data-spec]") || document.getElementById(figure.dataset.chart);
    return JSON.parse(source.textContent);
  }

  function prepare(root) {
    for (const figure of figures.keys()) if (!figure.isConnected) figures.delete(figure);
    const found = [...root.querySelectorAll("[data-chart]")].filter((figure) => !figures.has(figure));
    if (found.length === 0) return;
    for (const figure of found) {
      const place = figure.querySelector("[data-chart-plot]") || figure.appendChild(Object.assign(document.createElement("div"), { className: "chart-plot" }));
      place.dataset.chartPlot = "";
      figures.set(figure, read(figure));
      const old = leaving.get(figure.dataset.chartKey);
      if (old && !old.plot.isConnected) {
        place.replaceWith(old.plot);
        if (old.asTable) showTable(figure, true);
      }
      leaving.delete(figure.dataset.chartKey);
    }
    for (const figure of found) seen.observe(figure);
  }

  /** What is a window's half below the view is drawn already, so that who scrolls finds it there. */
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target: figure, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        seen.unobserve(figure);
        loadPlotly().then(
          (Plotly) => figure.isConnected && draw(figure, Plotly),
          () => showTable(figure, true),
        );
      }
    },
    { rootMargin: "50% 0px" },
  );

  onContent(prepare);
  document.addEventListener("flywheel:theme", () => {
    for (const figure of figures.keys()) if (figure.querySelector("[data-chart-plot]")?.data) draw(figure, window.Plotly);
  });
})();
