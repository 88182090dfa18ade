// The trajectory page: tree, waterfall and conversation are one choice and one address (`?step=&view=&find=`). The
// conversation is loaded in windows as one scrolls, both ways, and lets go of those far away.

(() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { keys } = window.Flywheel;
  const root = find("#trace");
  const pane = find(".talk-pane");
  const windows = find("#windows");
  const { address, failing } = root.dataset;
  const MOST = 4; // windows in the page
  const NEAR = 1200; // pixels from an end at which the next window is loaded
  const scope = "Trajectory";
  const asked = new URLSearchParams(location.search);
  const narrow = matchMedia("(max-width: 999px)");
  let chosen = Number(root.dataset.chosen);
  let side = asked.get("side") || "";

  const outline = window.Flywheel.outline(root, (at) => choose(at));

  // ── The address ──────────────────────────────────────────────────────────────────────────────────────────────

  function remember(changes, isNew) {
    const query = new URLSearchParams(location.search);
    query.delete("start");
    for (const [name, value] of Object.entries(changes)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const where = `${address}${query.size > 0 ? `?${query}` : ""}`;
    const isSame = where === `${location.pathname}${location.search}`;
    // Writing what is there already would call off a way back that has just begun.
    if (isSame && history.state?.at === chosen) return;
    history[isNew && !isSame ? "pushState" : "replaceState"]({ at: chosen }, "", where);
  }

  // ── Windows of the conversation ──────────────────────────────────────────────────────────────────────────────

  const startOf = (list) => Number(list.dataset.start);
  let busy = null;

  async function fetched(start) {
    const answer = await fetch(`${address}conversation/?start=${start}&failing=${encodeURIComponent(failing)}`);
    if (!answer.ok) throw new Error(answer.status);
    const holder = document.createElement("template");
    holder.innerHTML = await answer.text();
    return holder.content.firstElementChild;
  }

  function place(list, method) {
    windows[method](list);
    window.htmx.process(list);
    mark();
    highlight();
  }

  /** The window before the first or after the last one, and away with what is far on the other side. */
  async function extend(isDown) {
    const edge = isDown ? windows.lastElementChild : windows.firstElementChild;
    const link = find(`:scope > .more:${isDown ? "last" : "first"}-child [data-window]`, edge);
    if (!link || (isDown ? Number(link.dataset.window) <= startOf(edge) : Number(link.dataset.window) >= startOf(edge))) return false;
    const list = await fetched(link.dataset.window);
    if (!edge.isConnected) return false; // jumped elsewhere meanwhile
    const kept = isDown ? windows.firstElementChild : windows.lastElementChild;
    const height = windows.scrollHeight;
    if (isDown) {
      place(list, "append");
      if (windows.children.length > MOST) {
        const before = windows.scrollHeight;
        kept.remove();
        pane.scrollTop -= before - windows.scrollHeight;
      }
    } else {
      place(list, "prepend");
      pane.scrollTop += windows.scrollHeight - height;
      if (windows.children.length > MOST) kept.remove();
    }
    return true;
  }

  function fill() {
    if (busy) return;
    const { scrollTop, scrollHeight, clientHeight } = pane;
    if (clientHeight === 0) return;
    const wants = [];
    if (scrollHeight - scrollTop - clientHeight < NEAR) wants.push(true);
    if (scrollTop < NEAR) wants.push(false);
    if (wants.length === 0) return;
    busy = (async () => {
      let isMore = false;
      for (const isDown of wants) isMore = (await extend(isDown)) || isMore;
      return isMore;
    })()
      .catch(() => window.Flywheel.say("Further steps are not loaded: the server cannot be reached.", "bad"))
      .then((isMore) => {
        busy = null;
        if (isMore === true) fill();
      });
  }

  const turnsAt = (at) => all(`.turn[data-at="${at}"]`, windows);
  const isHere = (at) => [...windows.children].some((list) => startOf(list) <= at && at < Number(list.dataset.end));

  /** Show the turns of a step, from wherever they are. */
  async function show(at) {
    if (!isHere(at)) {
      const list = await fetched(at).catch(() => null);
      if (!list || at !== chosen) return;
      windows.replaceChildren();
      place(list, "append");
      pane.scrollTop = 0;
    }
    const turn = turnsAt(at).find((each) => each.id) ?? turnsAt(at)[0];
    if (turn) reveal(turn);
    mark();
    fill();
  }

  function reveal(turn) {
    for (let fold = turn.parentElement.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const inside = turn.getBoundingClientRect();
    const frame = pane.getBoundingClientRect();
    if (inside.top >= frame.top + 8 && inside.bottom <= frame.bottom) return;
    pane.scrollTop += inside.top - frame.top - Math.min(frame.height / 3, 120);
  }

  function mark() {
    for (const turn of all(".turn.current", windows)) turn.classList.remove("current");
    for (const turn of turnsAt(chosen)) if (turn.id) turn.classList.add("current");
  }

  let frame = 0;
  pane.addEventListener(
    "scroll",
    () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(fill);
    },
    { passive: true },
  );

  // ── One choice ───────────────────────────────────────────────────────────────────────────────────────────────

  let waiting = 0;
  let reading = new AbortController();

  function choose(at, { push = true, wait = 0 } = {}) {
    if (at < 0 || Number.isNaN(at)) return;
    chosen = at;
    outline.choose(at);
    show(at);
    forget();
    waiting = setTimeout(() => step(`at=${at}`, push), wait);
  }

  function chooseNone() {
    chosen = -1;
    outline.choose(-1);
    forget();
    find("#step").replaceChildren();
    mark();
  }

  /** What was asked for before and is still on its way is not wanted any more. */
  function forget() {
    clearTimeout(waiting);
    reading.abort();
  }

  /** Load a step beside the conversation; the last one asked for wins. What it is called goes into the address. */
  async function step(which, isNew = true) {
    forget();
    reading = new AbortController();
    const { signal } = reading;
    const answer = await fetch(`${address}step/?${which}&side=${side}`, { signal }).catch(() => null);
    if (signal.aborted) return;
    const text = answer?.ok ? await answer.text().catch(() => "") : "";
    if (signal.aborted) return;
    if (!text) return void window.Flywheel.say(answer?.status === 404 ? "There is no such step; it may still be on its way." : "The step is not loaded: the server cannot be reached.", "bad");
    window.htmx.swap("#step", text, { swapStyle: "innerHTML" });
    const { chosen: span, position, side: shown } = find("#step [data-chosen]").dataset;
    const at = Number(position);
    if (at !== chosen) {
      chosen = at;
      outline.choose(at);
      show(at);
    }
    remember({ step: span, side: shown === "preview" ? "" : shown }, isNew);
    document.dispatchEvent(new CustomEvent("flywheel:step", { detail: { step: span, position: at } }));
  }

  // Before htmx, which would load what we load.
  document.addEventListener(
    "click",
    (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      const link = event.target.closest?.("a[data-step], a[data-side], a[data-view], a[data-window]");
      if (!link) return;
      event.preventDefault();
      event.stopPropagation();
      if (link.dataset.step) step(`step=${encodeURIComponent(link.dataset.step)}`);
      else if (link.dataset.side) {
        side = link.dataset.side;
        step(`at=${chosen}`);
      } else if (link.dataset.view) look(link.dataset.view, true);
      else jump(Number(link.dataset.window));
    },
    true,
  );

  /** A window by its link, for who does not scroll. */
  async function jump(start) {
    const isDown = start > startOf(windows.lastElementChild);
    await extend(isDown).catch(() => window.Flywheel.say("Not loaded: the server cannot be reached.", "bad"));
    const list = [...windows.children].find((each) => startOf(each) === start);
    const turn = list && find(".turn", list);
    if (!turn) return;
    turn.tabIndex = -1;
    turn.focus({ preventScroll: true });
    reveal(turn);
  }

  function look(view, push) {
    root.dataset.shown = view;
    for (const tab of all("a[data-view]")) {
      if (tab.dataset.view === view) tab.setAttribute("aria-current", "true");
      else tab.removeAttribute("aria-current");
    }
    outline.refresh();
    if (chosen >= 0) {
      outline.choose(chosen);
      show(chosen);
    }
    fill();
    if (push) remember({ view }, true);
  }

  addEventListener("popstate", ({ state }) => {
    const query = new URLSearchParams(location.search);
    const view = query.get("view") || "tree";
    side = query.get("side") || "";
    if (view !== root.dataset.shown) look(view, false);
    if (query.has("step") && state?.at >= 0) choose(state.at, { push: false });
    else if (!query.has("step")) chooseNone();
  });

  // ── Search ───────────────────────────────────────────────────────────────────────────────────────────────────

  const form = find("form.inside");
  const field = find("input", form);
  const told = find("[data-found]");
  let matches = [];
  let match = -1;
  let isPart = false;
  let searched = "";

  async function search() {
    searched = field.value.trim();
    matches = [];
    match = -1;
    told.textContent = searched ? "…" : "";
    if (searched) {
      const answer = await fetch(`${address}search/?q=${encodeURIComponent(searched)}`).catch(() => null);
      if (field.value.trim() !== searched) return;
      if (!answer?.ok) return void (told.textContent = "not searched: the server cannot be reached");
      ({ matches, is_part: isPart } = await answer.json());
      told.textContent = matches.length > 0 ? `${matches.length}${isPart ? "+" : ""} steps` : "not found";
    }
    outline.mark(matches.map(({ at }) => at));
    for (const button of all("[data-match]")) button.disabled = matches.length === 0;
    remember({ find: searched }, false);
    highlight();
  }

  function go(distance) {
    if (matches.length === 0) return;
    const after = matches.findIndex(({ at }) => at >= Math.max(0, chosen));
    match = match < 0 ? (after < 0 ? 0 : after) : (match + distance + matches.length) % matches.length;
    const { at, place, excerpt } = matches[match];
    told.textContent = `${match + 1} of ${matches.length}${isPart ? "+" : ""} steps`;
    told.title = `${place}: ${excerpt}`;
    choose(at);
  }

  /** What is found stands out where it is in the page; nothing in the page changes for it. */
  function highlight() {
    if (!window.Highlight) return;
    const ranges = [];
    const wanted = searched.toLowerCase();
    if (wanted) {
      const texts = document.createTreeWalker(windows, NodeFilter.SHOW_TEXT);
      while (texts.nextNode() && ranges.length < 2000) {
        const text = texts.currentNode.data.toLowerCase();
        for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
          const range = new Range();
          range.setStart(texts.currentNode, at);
          range.setEnd(texts.currentNode, Math.min(at + wanted.length, texts.currentNode.data.length));
          ranges.push(range);
        }
      }
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }

  async function seek(distance) {
    if (field.value.trim() !== searched) await search();
    go(distance);
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    seek(1);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    seek(-1);
  });

  // ── Keys and buttons ─────────────────────────────────────────────────────────────────────────────────────────

  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("[data-error], [data-match]");
    if (button?.dataset.error) whole.then(() => choose(outline.nextError(Number(button.dataset.error))));
    if (button?.dataset.match) go(Number(button.dataset.match));
  });
  const walk = (distance) => (event) => choose(outline.beside(distance), { push: false, wait: event?.repeat ? 150 : 0 });
  keys.add({ key: "j", label: "Next step", scope, repeats: true, run: walk(1) });
  keys.add({ key: "k", label: "Previous step", scope, repeats: true, run: walk(-1) });
  find("[data-zoom]").addEventListener("click", outline.zoom);

  // ── The beginning ────────────────────────────────────────────────────────────────────────────────────────────

  async function outlined() {
    const inert = find("#outline");
    let data = inert ? JSON.parse(inert.textContent) : await (await fetch(`${address}steps/`)).json();
    inert?.remove();
    for (;;) {
      outline.add(data);
      outline.refresh();
      if (data.next === null) break;
      data = await (await fetch(`${address}steps/?start=${data.next}`)).json();
    }
    if (chosen >= 0) outline.choose(chosen);
  }

  history.replaceState({ at: chosen }, "");
  if (!asked.has("view") && narrow.matches) look("conversation", false);
  const whole = outlined().catch(() => window.Flywheel.say("The list of steps is not loaded: the server cannot be reached.", "bad"));
  if (chosen >= 0) show(chosen);
  else fill();
  if (asked.get("find")) {
    field.value = asked.get("find");
    search();
  }
})();
