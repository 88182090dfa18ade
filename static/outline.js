// The outline of a trajectory: tree, waterfall and minimap of all its steps. However many there are, only the lines in
// view are in the page. Steps are known by their position; flywheel/trajectories/detail/outline.py says what the data means.

window.Flywheel.outline = (root, onChoose) => {
  "use strict";

  const LINE = 28; // pixels, as in app.css
  const SPARE = 12; // lines drawn beyond those in view
  const find = (selector) => root.querySelector(selector);
  const list = find(".outline");
  const axis = find(".axis");
  const map = find(".minimap");
  const total = Number(root.dataset.total);
  const lines = document.createElement("div");
  lines.setAttribute("role", "presentation");
  list.replaceChildren(lines);

  const parent = new Int32Array(total).fill(-1);
  const at = new Float64Array(total).fill(NaN);
  const took = new Float64Array(total).fill(NaN);
  const nameOf = new Int32Array(total).fill(-1);
  const failed = new Uint8Array(total);
  const depth = new Uint16Array(total);
  const size = new Int32Array(total).fill(1); // with all that lies below
  const closed = new Uint8Array(total);
  const row = new Int32Array(total).fill(-1); // of the lines that are not folded away
  const names = [];
  const odd = new Map();
  let order = new Int32Array(0);
  let rows = new Int32Array(0);
  let count = 0; // steps that are here
  let chosen = -1;
  let range = null; // what the waterfall spans, in ms; null for all
  let marks = []; // positions of matches
  let said = new Map(); // how many comments a step has
  let drawn = [0, -1];

  // ── From columns to lines ────────────────────────────────────────────────────────────────────────────────────

  function add(data) {
    const { start } = data;
    const length = Math.min(data.parent.length, total - start);
    for (let place = 0; place < length; place += 1) {
      parent[start + place] = data.parent[place];
      at[start + place] = data.at[place] ?? NaN;
      took[start + place] = data.took[place] ?? NaN;
    }
    for (const { kind, name, at: places } of data.names) {
      names.push({ kind, name });
      for (const place of places) nameOf[place] = names.length - 1;
    }
    for (const place of data.errors) failed[place] = 1;
    for (const [place, word] of Object.entries(data.odd)) odd.set(Number(place), word);
    count = Math.max(count, start + length);
    arrange();
  }

  /** Parents before their children, children in order. What hangs in no tree, or in a ring, stands at the top. */
  function arrange() {
    const child = new Int32Array(count).fill(-1);
    const sibling = new Int32Array(count).fill(-1);
    const isBelow = (place) => parent[place] >= 0 && parent[place] < count && parent[place] !== place;
    for (let place = count - 1; place >= 0; place -= 1) {
      if (!isBelow(place)) continue;
      sibling[place] = child[parent[place]];
      child[parent[place]] = place;
    }
    const seen = new Uint8Array(count);
    order = new Int32Array(count);
    let end = 0;
    const descend = (top) => {
      const path = [top];
      depth[top] = 0;
      while (path.length > 0) {
        const place = path.pop();
        if (seen[place]) continue;
        seen[place] = 1;
        order[end++] = place;
        const below = [];
        for (let next = child[place]; next >= 0; next = sibling[next]) if (!seen[next]) below.push(next);
        for (const next of below) depth[next] = depth[place] + 1;
        while (below.length > 0) path.push(below.pop());
      }
    };
    for (let place = 0; place < count; place += 1) if (!isBelow(place)) descend(place);
    for (let place = 0; place < count; place += 1) if (!seen[place]) descend(place);
    size.fill(1);
    for (let index = count - 1; index >= 0; index -= 1) {
      const place = order[index];
      if (depth[place] > 0) size[parent[place]] += size[place];
    }
    fold();
  }

  /** Which lines there are, now that some are folded. */
  function fold() {
    row.fill(-1);
    const shown = [];
    for (let index = 0; index < order.length; index += closed[order[index]] ? size[order[index]] : 1) {
      row[order[index]] = shown.length;
      shown.push(order[index]);
    }
    rows = Int32Array.from(shown);
    lines.style.height = `${rows.length * LINE}px`;
    drawn = [0, -1];
    draw();
    drawMap();
  }

  function toggle(place, close = !closed[place]) {
    if (size[place] < 2) return;
    closed[place] = close ? 1 : 0;
    fold();
  }

  // ── Lines ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** Says the same as `duration` in flywheel/templatetags. */
  function duration(ms) {
    if (Number.isNaN(ms)) return "–";
    if (ms < 999.5) return `${Math.round(ms)}\u00a0ms`;
    if (ms < 9950) return `${(ms / 1000).toFixed(1)}\u00a0s`;
    const seconds = Math.round(ms / 1000);
    const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"], [Math.floor(seconds / 60) % 60, "m"], [seconds % 60, "s"]];
    const first = parts.findIndex(([value]) => value > 0);
    return parts.slice(first, first + 2).map(([value, unit], place) => `${place > 0 && unit !== "h" ? String(value).padStart(2, "0") : value}\u00a0${unit}`).join("\u00a0");
  }

  const put = (tag, className, text = "") => Object.assign(document.createElement(tag), { className, textContent: text });

  function span() {
    if (range) return range;
    let end = 0;
    for (let place = 0; place < count; place += 1) {
      const moment = at[place] + (took[place] || 0);
      if (moment > end) end = moment;
    }
    return [0, end];
  }

  function line(place, from, length) {
    const { kind = "", name = "" } = names[nameOf[place]] ?? {};
    const item = put("div", `line level-${Math.min(depth[place], 5)}${failed[place] ? " failing" : ""}`);
    item.id = `line-${place}`;
    item.dataset.at = place;
    item.title = `${place + 1} ${kind} ${name}`;
    item.setAttribute("role", "treeitem");
    item.setAttribute("aria-level", depth[place] + 1);
    item.setAttribute("aria-selected", String(place === chosen));
    const twist = put("span", "twist", size[place] > 1 ? (closed[place] ? "▸" : "▾") : "");
    if (size[place] > 1) item.setAttribute("aria-expanded", String(!closed[place]));
    const label = put("span", "clip", name);
    if (closed[place]) label.append(put("span", "muted", ` +${size[place] - 1}`));
    if (odd.has(place)) label.append(put("span", "muted", ` · ${odd.get(place)}`));
    if (said.get(place)) label.append(put("span", "said-here", ` · ${said.get(place)} said`));
    const track = put("span", "track");
    if (!Number.isNaN(at[place]) && length > 0) {
      const begin = Math.max(0, (at[place] - from) / length);
      const end = Math.min(1, (at[place] + (took[place] || 0) - from) / length);
      if (begin <= 1 && end >= 0) {
        const fill = put("i", `fill${failed[place] ? " bad" : ""}${kind === "assistant" ? " model" : ""}${took[place] > 0 ? "" : " point"}`);
        fill.style.left = `${Math.min(begin, 0.998) * 100}%`;
        fill.style.width = `${Math.max(0, end - begin) * 100}%`;
        track.append(fill);
      }
    }
    const head = put("span", "head");
    head.append(twist, label);
    item.append(head, track, put("span", "num", duration(took[place])));
    return item;
  }

  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / LINE) - SPARE);
    const last = Math.min(rows.length, Math.ceil((list.scrollTop + list.clientHeight) / LINE) + SPARE);
    if (first === drawn[0] && last === drawn[1]) return;
    drawn = [first, last];
    const [from, to] = span();
    const shown = document.createDocumentFragment();
    for (let index = first; index < last; index += 1) {
      const item = line(rows[index], from, to - from);
      item.style.top = `${index * LINE}px`;
      shown.append(item);
    }
    lines.replaceChildren(shown);
    const active = row[chosen] >= first && row[chosen] < last;
    if (active) list.setAttribute("aria-activedescendant", `line-${chosen}`);
    else list.removeAttribute("aria-activedescendant");
  }

  function redraw() {
    drawn = [0, -1];
    draw();
  }

  function drawAxis() {
    const [from, to] = span();
    if (to === from) {
      axis.replaceChildren(put("span", "", "no times were recorded: the steps in their order"));
      return;
    }
    const sign = range ? "+" : "";
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => put("span", "", sign + duration((to - from) * share)));
    axis.replaceChildren(...ticks);
  }

  // ── The minimap: errors and matches among all lines, and what is in view ─────────────────────────────────────

  function drawMap() {
    const { clientWidth: width, clientHeight: height } = map;
    if (width === 0 || height === 0) return;
    const scale = window.devicePixelRatio || 1;
    map.width = width * scale;
    map.height = height * scale;
    const paint = map.getContext("2d");
    paint.scale(scale, scale);
    const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const spread = Math.max(rows.length, height / LINE); // a short list is beside its own lines
    const place = (index) => (index / spread) * height;
    const tick = (position, name, thick) => {
      const index = row[visible(position)];
      if (index < 0) return;
      paint.fillStyle = colours[name];
      paint.fillRect(0, Math.min(height - thick, place(index)), width, thick);
    };
    const colours = Object.fromEntries(["--bad", "--warn", "--accent", "--line-strong"].map((name) => [name, resolve(colour(name))]));
    if (rows.length * LINE > list.clientHeight) {
      paint.fillStyle = colours["--line-strong"];
      paint.fillRect(0, place(list.scrollTop / LINE), width, Math.max(6, place(list.clientHeight / LINE)));
    }
    for (let position = 0; position < count; position += 1) if (failed[position]) tick(position, "--bad", 2);
    for (const position of marks) tick(position, "--warn", 2);
    if (chosen >= 0) tick(chosen, "--accent", 3);
  }

  const probe = put("i", "sr-only");
  root.append(probe);
  /** A canvas does not understand light-dark(). */
  function resolve(value) {
    probe.style.color = value;
    return getComputedStyle(probe).color;
  }

  /** The step itself, or what it is folded into. */
  function visible(position) {
    let place = position;
    for (let up = 0; up < 1000 && place >= 0 && row[place] < 0; up += 1) place = parent[place];
    return place;
  }

  // ── Choosing ─────────────────────────────────────────────────────────────────────────────────────────────────

  function choose(position) {
    chosen = position;
    let isFolded = false;
    for (let place = parent[position] ?? -1, up = 0; place >= 0 && up < 1000; place = parent[place], up += 1) {
      if (closed[place]) isFolded = true;
      closed[place] = 0;
    }
    if (isFolded) fold();
    const top = row[position] * LINE;
    if (row[position] >= 0 && (top < list.scrollTop || top > list.scrollTop + list.clientHeight - LINE)) {
      list.scrollTop = top - list.clientHeight / 3;
    }
    redraw();
    drawMap();
  }

  const first = () => (rows.length > 0 ? rows[0] : -1);
  function beside(step) {
    const index = row[visible(chosen)] ?? -1;
    return index < 0 ? first() : rows[Math.max(0, Math.min(rows.length - 1, index + step))];
  }

  /** The next position after the chosen one for which `is` holds, round the end. */
  function next(is, step) {
    for (let distance = 1; distance <= count; distance += 1) {
      const place = (((chosen + step * distance) % count) + count) % count;
      if (is(place)) return place;
    }
    return -1;
  }

  list.addEventListener("click", ({ target }) => {
    const item = target.closest(".line");
    if (!item) return;
    const place = Number(item.dataset.at);
    if (target.closest(".twist") && size[place] > 1) toggle(place);
    else onChoose(place);
  });
  list.addEventListener("dblclick", ({ target }) => {
    const item = target.closest(".line");
    if (item) toggle(Number(item.dataset.at));
  });
  list.addEventListener("keydown", (event) => {
    const moves = { ArrowDown: () => beside(1), ArrowUp: () => beside(-1), Home: first, End: () => rows[rows.length - 1] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (moves[event.key]) onChoose(moves[event.key]());
    else if (event.key === "ArrowLeft" && chosen >= 0) {
      if (size[chosen] > 1 && !closed[chosen]) toggle(chosen, true);
      else if (parent[chosen] >= 0) onChoose(parent[chosen]);
    } else if (event.key === "ArrowRight" && chosen >= 0) toggle(chosen, false);
    else return;
    event.preventDefault();
  });
  let asked = 0;
  const soon = (work) => {
    cancelAnimationFrame(asked);
    asked = requestAnimationFrame(work);
  };
  list.addEventListener("scroll", () => soon(() => (draw(), drawMap())), { passive: true });
  map.addEventListener("click", (event) => {
    const place = rows[Math.floor((event.offsetY / map.clientHeight) * Math.max(rows.length, map.clientHeight / LINE))];
    if (place !== undefined) onChoose(place);
  });
  new ResizeObserver(() => soon(() => (redraw(), drawMap()))).observe(list);
  document.addEventListener("flywheel:theme", drawMap);
  document.addEventListener("flywheel:said", ({ detail }) => {
    said = detail;
    redraw();
  });
  find('[data-fold="open"]').addEventListener("click", () => (closed.fill(0), fold()));
  find('[data-fold="close"]').addEventListener("click", () => {
    for (let place = 0; place < count; place += 1) closed[place] = size[place] > 1 ? 1 : 0;
    fold();
  });

  return {
    add,
    choose,
    beside,
    nextError: (step) => next((place) => failed[place] === 1, step),
    mark(positions) {
      marks = positions;
      drawMap();
    },
    /** The waterfall spans the chosen step, or what it lies in when nothing lies in it; or all again. */
    zoom() {
      const place = chosen >= 0 && size[chosen] < 2 && parent[chosen] >= 0 ? parent[chosen] : chosen;
      const fits = place >= 0 && took[place] > 0 && !Number.isNaN(at[place]);
      range = range || !fits ? null : [at[place], at[place] + took[place]];
      drawAxis();
      redraw();
    },
    refresh() {
      drawAxis();
      redraw();
      drawMap();
    },
  };
};
