// The keyboard: one registry, from which the keys act, the `?` sheet is written and the palette is filled.
//
//   Flywheel.keys.add({ key: "u", label: "Undo", scope: "Queue", run(event) {…}, when: () => true })  → removes it
//   <button data-key="p" data-key-label="Pass" data-key-scope="Decision">
//
// A key is "j", "?", "Enter", "ArrowLeft", a sequence "g t", or has modifiers "mod+Enter" (Ctrl or ⌘), "shift+x", "alt+1".

(() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
  const typingIn = "input:not([type=checkbox], [type=radio], [type=button], [type=submit], [type=range]), textarea, select, [contenteditable=true]";
  const registered = [];
  let begun = "";
  let begunAt = 0;

  // ── The registry ─────────────────────────────────────────────────────────────────────────────────────────────

  function add(handler) {
    const entry = { scope: "This page", when: () => true, ...handler };
    registered.push(entry);
    return () => registered.splice(registered.indexOf(entry), 1);
  }

  /** Elements with data-key that can be pressed now. The rail counts even where the window is too narrow to show it. */
  function declared() {
    return all("[data-key]")
      .filter((element) => !element.disabled && (element.dataset.room || element.checkVisibility()))
      .map((element) => ({
        key: element.dataset.key,
        label: element.dataset.keyLabel || element.ariaLabel || element.textContent.trim(),
        scope: element.dataset.room ? "Rooms" : element.dataset.keyScope || "This page",
        element,
        run: () => press(element),
      }));
  }

  const active = () => [...registered.filter((entry) => entry.when()), ...declared()];

  function press(element) {
    pulse(element);
    if (element.matches(typingIn)) element.focus();
    else element.click();
  }

  function pulse(element) {
    const shown = element.closest(".choice label") || element;
    shown.classList.remove("pulse");
    void shown.offsetWidth; // restarts the animation
    shown.classList.add("pulse");
    setTimeout(() => shown.classList.remove("pulse"), 160);
  }

  // ── From a key press to a handler ────────────────────────────────────────────────────────────────────────────

  function chord(event) {
    const altGraph = event.getModifierState("AltGraph");
    const letter = event.key.length === 1;
    const key = letter ? event.key.toLowerCase() : event.key;
    // For signs, shift is only how the layout writes them: `?` is "?" everywhere.
    const shift = event.shiftKey && (!letter || key !== event.key || /[a-z]/.test(key));
    const mod = (event.ctrlKey || event.metaKey) && !altGraph;
    return `${mod ? "mod+" : ""}${event.altKey && !altGraph ? "alt+" : ""}${shift ? "shift+" : ""}${key === " " ? "Space" : key}`;
  }

  function isHeldBack(event, name) {
    const target = event.target instanceof Element ? event.target : document.body;
    const hasModifier = /^(mod|alt)\+/.test(name);
    if (find("dialog[open], details.menu[open]")) return true;
    if (window.Flywheel.saving.size > 0) return true;
    if (target.closest(typingIn)) return !hasModifier;
    // Enter and space on a link or a button are its own.
    return /^(Enter|Space)$/.test(name) && target.closest("a, button, summary, input") !== null;
  }

  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
    const name = chord(event);
    if (name === "Escape" && event.target instanceof HTMLElement && event.target.matches(typingIn) && !find("dialog[open]")) {
      event.target.blur();
      return;
    }
    if (isHeldBack(event, name)) return;
    const started = begun && performance.now() - begunAt < 1200 ? `${begun} ${name}` : "";
    const handlers = active();
    const handler = (started && handlers.find((entry) => entry.key === started)) || handlers.find((entry) => entry.key === name);
    begun = "";
    if (handler) {
      if (event.repeat && !handler.repeats) return;
      event.preventDefault();
      handler.run(event);
    } else if (handlers.some((entry) => entry.key.startsWith(`${name} `))) {
      event.preventDefault();
      begun = name;
      begunAt = performance.now();
    }
  });

  // ── How a key is written ─────────────────────────────────────────────────────────────────────────────────────

  const SIGNS = { Enter: "↵", ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc", shift: "⇧", alt: isMac ? "⌥" : "Alt", mod: isMac ? "⌘" : "Ctrl" };
  const write = (key) => key.split(" ").map((part) => part.split(/\+(?=.)/).map((bit) => SIGNS[bit] || bit).join(" ")).join(" ");

  // ── The sheet ────────────────────────────────────────────────────────────────────────────────────────────────

  function openSheet() {
    const groups = new Map();
    for (const { key, label, scope } of active()) {
      const group = groups.get(scope) || new Map();
      if (!group.has(key)) group.set(key, label);
      groups.set(scope, group);
    }
    const sections = [...groups].map(([scope, entries]) => {
      const section = document.createElement("section");
      const heading = document.createElement("h3");
      const list = document.createElement("ul");
      heading.textContent = scope;
      for (const [key, label] of entries) {
        const item = document.createElement("li");
        const name = document.createElement("span");
        const keys = document.createElement("span");
        name.textContent = label;
        keys.className = "nowrap";
        for (const part of write(key).split(" ")) {
          const cap = document.createElement("kbd");
          cap.textContent = part;
          keys.append(cap, " ");
        }
        item.append(name, keys);
        list.append(item);
      }
      section.append(heading, list);
      return section;
    });
    find("[data-keys-list]").replaceChildren(...sections);
    find("#keys-sheet").showModal();
  }

  // ── Lists: j k Enter x ───────────────────────────────────────────────────────────────────────────────────────

  const rowsOf = (list) => (list ? all("tbody tr, li", list) : []);
  const theList = () => find("[data-list]:has(.at)") || find("[data-list]");
  const theRow = () => find("[data-list] .at");
  const hasRows = () => rowsOf(theList()).length > 0;
  const addressOf = (row) => row.dataset.href || find("a[href]", row)?.href || "";
  let lastAddress = "";

  function goTo(row, focus = true) {
    for (const other of all("[data-list] .at")) other.classList.remove("at");
    row.classList.add("at");
    lastAddress = addressOf(row);
    if (!focus) return;
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  function move(step) {
    const rows = rowsOf(theList());
    const at = rows.indexOf(theRow());
    goTo(rows[at < 0 ? 0 : Math.max(0, Math.min(rows.length - 1, at + step))]);
  }

  function restoreRow() {
    if (!lastAddress || theRow()) return;
    const row = rowsOf(theList()).find((each) => addressOf(each) === lastAddress);
    if (row) goTo(row, false);
  }

  const inList = { scope: "List", when: hasRows };
  const onRow = { scope: "List", when: () => theRow() !== null };
  add({ ...inList, key: "j", label: "Next row", repeats: true, run: () => move(1) });
  add({ ...inList, key: "k", label: "Previous row", repeats: true, run: () => move(-1) });
  add({ ...onRow, key: "Enter", label: "Open", run: () => addressOf(theRow()) && location.assign(addressOf(theRow())) });
  add({
    ...onRow,
    key: "x",
    label: "Select",
    when: () => theRow()?.querySelector(".tick input") != null,
    run: () => find(".tick input", theRow()).click(),
  });

  // ── The palette ──────────────────────────────────────────────────────────────────────────────────────────────

  const palette = find("#palette");
  const paletteInput = find("input", palette);
  const paletteList = find("ul", palette);
  let choices = [];
  let offered = [];
  let chosen = 0;
  let asked = 0;
  let found = { wanted: "", places: [] };

  /** Ask the server for objects, pages and guides by these words; what is here already stands there at once. */
  async function ask() {
    const address = paletteInput.dataset.find;
    const wanted = paletteInput.value.trim();
    const mine = ++asked;
    if (!address || wanted.length < 2) return;
    await new Promise((resolve) => setTimeout(resolve, 120));
    if (mine !== asked) return;
    const answer = await fetch(`${address}?${new URLSearchParams({ q: wanted })}`).catch(() => null);
    if (!answer?.ok || mine !== asked) return;
    found = { wanted, places: (await answer.json()).places };
    if (mine === asked) listPalette();
  }

  function collect() {
    const seen = new Set();
    const here = [];
    const put = (label, hint, run) => {
      if (!label || seen.has(label)) return;
      seen.add(label);
      here.push({ label, hint, run });
    };
    for (const link of all(".rail a[data-room]")) {
      put(link.dataset.room, write(link.dataset.key || ""), () => location.assign(link.href));
    }
    for (const button of all("main .actions .btn, main .menu-list a, main .menu-list button")) {
      if (!button.disabled) put(button.dataset.keyLabel || button.textContent.trim(), write(button.dataset.key || ""), () => button.click());
    }
    for (const entry of active()) {
      if (entry.key !== "mod+k") put(entry.label, write(entry.key), () => entry.run());
    }
    for (const link of all(".topbar .project-switch + .menu-list a")) put(`Project ${link.textContent}`, "", () => location.assign(link.href));
    return here;
  }

  function listPalette() {
    const wanted = paletteInput.value.trim().toLowerCase();
    const shown = choices.filter(({ label }) => wanted.split(/\s+/).every((word) => label.toLowerCase().includes(word)));
    for (const place of found.wanted === paletteInput.value.trim() ? found.places : []) {
      shown.push({ label: place.label, hint: place.kind, run: () => location.assign(place.url) });
    }
    const trajectories = find('.rail a[data-room="Trajectories"]');
    if (wanted && trajectories) {
      const text = paletteInput.value.trim();
      shown.push({
        label: `Search trajectories for “${text}”`,
        hint: "",
        run: () => location.assign(`${trajectories.pathname}?${new URLSearchParams({ q: text })}`),
      });
    }
    paletteList.replaceChildren(
      ...shown.map((choice, index) => {
        const item = document.createElement("li");
        const name = document.createElement("span");
        item.id = `palette-${index}`;
        item.role = "option";
        name.textContent = choice.label;
        item.append(name);
        if (choice.hint) item.append(Object.assign(document.createElement("kbd"), { textContent: choice.hint }));
        item.addEventListener("click", () => take(choice));
        return item;
      }),
    );
    offered = shown;
    if (shown.length === 0) paletteList.append(Object.assign(document.createElement("li"), { className: "nothing", textContent: "Nothing by that name" }));
    choose(0);
  }

  function choose(index) {
    const items = all("[role=option]", paletteList);
    if (items.length === 0) return;
    const at = (index + items.length) % items.length;
    items.forEach((item, place) => item.setAttribute("aria-selected", String(place === at)));
    items[at].scrollIntoView({ block: "nearest" });
    paletteInput.setAttribute("aria-activedescendant", items[at].id);
    chosen = at;
  }

  function take(choice) {
    palette.close();
    choice.run();
  }

  function openPalette() {
    choices = collect();
    paletteInput.value = "";
    listPalette();
    palette.showModal();
    paletteInput.focus();
  }

  paletteInput.addEventListener("input", listPalette);
  paletteInput.addEventListener("input", ask);
  paletteInput.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else if (event.key === "Enter" && offered.length > 0) take(offered[chosen]);
    else if (event.key === "Escape") palette.close(); // a search field takes the first one to empty itself
    else return;
    event.preventDefault();
  });

  // ── What works on every page ─────────────────────────────────────────────────────────────────────────────────

  const everywhere = "Everywhere";
  const theFilter = () => find("[data-filter]");
  add({ key: "?", label: "Keys", scope: everywhere, run: openSheet });
  add({ key: "mod+k", label: "Go to…", scope: everywhere, run: openPalette });
  add({ key: "/", label: "Filter", scope: everywhere, when: () => theFilter() !== null, run: () => theFilter().select() });
  document.addEventListener("click", ({ target }) => {
    if (!(target instanceof Element)) return;
    if (target.closest("[data-keys-sheet]")) openSheet();
    if (target.closest("[data-palette]")) openPalette();
  });

  window.Flywheel.onContent((root) => {
    for (const element of all("[data-key]", root)) {
      const shown = element.closest(".choice label") || element;
      shown.dataset.keyShown = write(element.dataset.key);
      if (!element.ariaKeyShortcuts) element.setAttribute("aria-keyshortcuts", element.dataset.key.replace("mod+", isMac ? "Meta+" : "Control+"));
    }
    for (const place of all("[data-mod]", root)) place.textContent = `${SIGNS.mod} ${place.dataset.mod}`;
    restoreRow();
  });

  window.Flywheel.keys = { add, active };
})();
