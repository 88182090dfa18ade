// Comments: @ completes the names of members, the step that is chosen can be spoken about, and each step in the list
// tells how much is said about it.

(() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { keys, onContent } = window.Flywheel;
  const OFFERED = 8;
  const meant = location.hash.startsWith("#comment-") ? location.hash.slice(1) : ""; // before a choice moves on

  const writing = () => document.activeElement?.closest(".comments textarea") ?? null;

  keys.add({
    key: "mod+Enter",
    label: "Save the comment",
    scope: "Comments",
    when: () => writing() !== null,
    run: () => writing().form.requestSubmit(),
  });

  // ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────

  let people = null;
  let field = null; // where names are offered now
  let chosen = 0;

  const list = Object.assign(document.createElement("ul"), { id: "people", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Members");
  const told = Object.assign(document.createElement("span"), { className: "sr-only" });
  told.setAttribute("role", "status");

  async function load(section) {
    people ??= fetch(section.dataset.people)
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      .then((found) => found.people)
      .catch(() => {
        people = null; // asked again at the next @
        return [];
      });
    return people;
  }

  /** What is written of a name before the caret, null where none is begun. */
  function begun(area) {
    const before = area.value.slice(0, area.selectionStart);
    return before.match(/(?:^|[^\w@.+-])@([\p{L}\p{N}_.@+-]*)$/u)?.[1] ?? null;
  }

  function matches(wanted, [name, full]) {
    const text = wanted.toLowerCase();
    return name.toLowerCase().startsWith(text) || full.toLowerCase().split(" ").some((word) => text && word.startsWith(text));
  }

  function close() {
    if (!field) return;
    for (const name of ["aria-controls", "aria-activedescendant"]) field.removeAttribute(name);
    field = null;
    list.hidden = true;
    told.textContent = "";
  }

  async function offer(area) {
    if (begun(area) === null) return close();
    const known = await load(area.closest(".comments"));
    const wanted = begun(area);
    if (wanted === null || document.activeElement !== area) return close();
    const found = known.filter((person) => matches(wanted, person)).slice(0, OFFERED);
    if (found.length === 0 || (found.length === 1 && found[0][0] === wanted)) return close();
    const options = found.map(([name, full], at) => {
      const option = Object.assign(document.createElement("li"), { id: `person-${at}` });
      option.setAttribute("role", "option");
      option.dataset.name = name;
      const more = Object.assign(document.createElement("span"), { className: "muted", textContent: full });
      option.append(name, " ", more);
      return option;
    });
    list.replaceChildren(...options);
    area.after(list, told);
    list.hidden = false;
    field = area;
    field.setAttribute("aria-controls", list.id);
    told.textContent = `${found.length} names. Up and down choose, Enter takes.`;
    choose(0);
  }

  function choose(at) {
    const options = all("li", list);
    chosen = (at + options.length) % options.length;
    options.forEach((option, place) => option.setAttribute("aria-selected", String(place === chosen)));
    field.setAttribute("aria-activedescendant", options[chosen].id);
  }

  function take(option) {
    const area = field;
    const end = area.selectionStart;
    area.setRangeText(`${option.dataset.name} `, end - begun(area).length, end, "end");
    close();
    area.focus();
  }

  document.addEventListener("input", ({ target }) => {
    if (target.matches(".comments textarea")) offer(target);
  });
  document.addEventListener("focusout", ({ target }) => {
    if (target === field) close();
  });
  list.addEventListener("mousedown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const option = event.target.closest("li");
    if (option && field) take(option);
  });
  document.addEventListener(
    "keydown",
    (event) => {
      if (!field || event.target !== field || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        ArrowDown: () => choose(chosen + 1),
        ArrowUp: () => choose(chosen - 1),
        Enter: () => take(all("li", list)[chosen]),
        Tab: () => take(all("li", list)[chosen]),
        Escape: close,
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    },
    true,
  );

  // ── The chosen step, and what is said about each ─────────────────────────────────────────────────────────────

  document.addEventListener("flywheel:step", ({ detail: { step, position } }) => {
    const about = find(".comments [data-say] select");
    if (!about) return;
    all("option", about).slice(1).forEach((option) => option.remove());
    about.add(new Option(`About step ${position + 1}`, step));
    if (!about.form.elements.text.value) about.value = step;
  });

  onContent(() => {
    const said = all(".comments [data-thread]").map((thread) => [Number(thread.dataset.thread), all(".said", thread).length]);
    document.dispatchEvent(new CustomEvent("flywheel:said", { detail: new Map(said) }));
    const called = meant && document.getElementById(meant);
    if (called && !called.classList.contains("called-here")) {
      called.classList.add("called-here");
      called.scrollIntoView({ block: "nearest" });
    }
  });
})();
