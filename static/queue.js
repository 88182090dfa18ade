// The review queue: the step in hand, Enter, and drafts. What a key does is declared in the templates by data-key, except
// for the two keys that move the step in hand and Enter, which are added here.

(() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { keys, onContent } = window.Flywheel;
  const scope = "Review";
  let inHand = "";
  let entering = 0; // from which side the keyboard came into the window of a long trajectory

  // ── The step in hand ─────────────────────────────────────────────────────────────────────────────────────────

  // A step's first turn carries its id, `step-` and the span's (templates/trajectories/_turns.html).
  const heads = () => all("#talk li[id^='step-']");
  const spanOf = (head) => head.id.slice("step-".length);
  const select = () => find("#failing-step");

  function take(head, scroll = true) {
    if (!head) return;
    inHand = spanOf(head);
    for (const other of heads()) other.classList.toggle("current", other === head);
    for (let fold = head.parentElement.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    if (scroll) head.scrollIntoView({ block: "nearest" });
  }

  function move(distance) {
    const list = heads();
    const at = list.findIndex((head) => spanOf(head) === inHand);
    const to = at < 0 ? 0 : at + distance;
    const beyond = list[to] ? null : find(`[data-window="${distance > 0 ? "next" : "previous"}"]`);
    if (!beyond) return take(list[Math.max(0, Math.min(list.length - 1, to))]);
    entering = distance;
    beyond.click();
  }

  /** The form lists the steps of one window: let it hold one of another too. */
  function offer(field, span, name) {
    if (![...field.options].some((option) => option.value === span)) field.add(new Option(name, span));
  }

  /** Show in the conversation which step the form calls the failing one. */
  function showMarked() {
    const field = select();
    if (!field) return;
    for (const head of heads()) {
      const isFailing = field.value !== "" && spanOf(head) === field.value;
      head.classList.toggle("failing", isFailing);
      const place = find("header", head);
      const shown = all(".chip.bad", place ?? head).find((chip) => chip.textContent.includes("fails here"));
      if (!isFailing) shown?.remove();
      else if (!shown) place?.append(Object.assign(document.createElement("span"), { className: "chip bad", textContent: "✕ fails here" }));
    }
  }

  function mark() {
    const field = select();
    const head = heads().find((each) => spanOf(each) === inHand);
    if (!field || !head) return;
    offer(field, inHand, `step ${Number(head.dataset.at) + 1}`);
    field.value = field.value === inHand ? "" : inHand;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }

  keys.add({ key: "]", label: "Next step", scope, repeats: true, when: () => heads().length > 0, run: () => move(1) });
  keys.add({ key: "[", label: "Previous step", scope, repeats: true, when: () => heads().length > 0, run: () => move(-1) });
  const done = { scope, when: () => find("[data-done]") !== null, run: () => find("[data-done]").click() };
  keys.add({ ...done, key: "Enter", label: "Done and next" });
  keys.add({ ...done, key: "f", label: "Fail: with the chosen category, next" });

  document.addEventListener("click", ({ target }) => {
    if (!(target instanceof Element)) return;
    if (target.closest("[data-mark-step]")) mark();
    let turn = target.closest("#talk .turn");
    while (turn && !turn.id) turn = turn.previousElementSibling;
    take(turn, false);
  });

  // ── Corrected action: its tick or its kind opens the editor, typing in it ticks it ───────────────────────────

  let isAwaited = false; // a key chose a kind, whose first field gets the focus

  const fieldsOf = (part) => all(":is(input:not([type=hidden]), select, textarea)", part);

  /** Go on where something is to be written: the last call's, or else the first field. */
  function enterEditor() {
    const part = all("#correction .editor .call").at(-1) ?? find("#correction .editor");
    fieldsOf(part ?? document)[0]?.focus({ preventScroll: true });
    find("#correction").scrollIntoView({ block: "start" });
  }

  document.addEventListener("click", (event) => {
    const chooser = event.target.closest?.("#correction .forms input");
    if (chooser) {
      const box = find("[data-correct]");
      const isShown = find("#correction").dataset.kind === chooser.value;
      isAwaited = !event.isTrusted && !isShown;
      if (!event.isTrusted && isShown) {
        if (box.checked && chooser.value === "calls") return find("#add-call")?.click();
        box.checked = true; // and with it the editor is shown
        enterEditor();
      }
      box.checked = true;
      box.dispatchEvent(new Event("input", { bubbles: true }));
    }
    if (event.target.closest?.("#correction [data-row]")) isAwaited = true;
  });

  document.addEventListener("change", ({ target }) => {
    if (target.matches("#failing-step")) showMarked();
    if (target.matches("[data-correct]") && target.checked) {
      enterEditor();
    }
  });
  document.addEventListener("input", ({ target }) => {
    const box = target.closest("#correction .editor") && find("[data-correct]");
    if (box) box.checked = true;
  });

  // ── Drafts: what was written and not saved outlives a look at another item ───────────────────────────────────

  const draftKey = (form) => `flywheel.draft.${location.pathname.split("/")[2]}.${form.dataset.draft}`;
  const written = (form) => [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken" && name !== "seen" && !/^(\d+\.)?was(_tool|_kind)?$/.test(name));

  function keep(form) {
    try {
      sessionStorage.setItem(draftKey(form), JSON.stringify(written(form)));
    } catch {
      // without storage the draft lasts as long as the form
    }
  }

  function forget(form) {
    try {
      sessionStorage.removeItem(draftKey(form));
    } catch {
      // nothing was kept
    }
  }

  /** Whether the correction's kind, tools or number of calls are others than its fields were made for. */
  function isStale(form) {
    const correction = find("#correction", form);
    if (!correction) return false;
    const kind = find(".forms :checked", correction)?.value ?? "";
    const rows = find("[name=rows]", correction)?.value;
    const tools = all("select[name$='tool']", correction);
    return (
      kind !== correction.dataset.kind ||
      (rows && rows !== correction.dataset.rows) ||
      tools.some((tool) => find(`[name="${tool.name.replace(/tool$/, "was_tool")}"]`, correction).value !== tool.value)
    );
  }

  let redraws = 0; // of a draft, whose fields come from the server step by step

  /** Put a draft back, and ask for the fields of its correction where the form has others. */
  function restoreAll(form) {
    restore(form);
    if (redraws === 0 || !isStale(form)) {
      redraws = 0;
      return;
    }
    redraws -= 1;
    if (window.htmx) redraw();
  }

  /** Ask for the correction's fields once htmx listens to it, which on a fresh page takes it a moment. */
  function redraw() {
    const correction = find("#correction");
    if (correction?.["htmx-internal-data"]?.listenerInfos?.length) window.htmx.trigger(correction, "redraw");
    else if (correction) setTimeout(redraw, 50);
  }

  /** Put a draft back, as far as the form has its fields. */
  function restore(form) {
    let draft;
    try {
      draft = JSON.parse(sessionStorage.getItem(draftKey(form)) || "null");
    } catch {
      return;
    }
    if (!draft) return;
    for (const [name, value] of draft) {
      for (const field of all(`[name="${CSS.escape(name)}"]`, form)) {
        if (field.id === "failing-step") offer(field, value, "as marked before");
        if (field.type === "radio" || field.type === "checkbox") field.checked = field.value === value;
        else field.value = value;
      }
    }
  }

  for (const event of ["input", "change"]) {
    document.addEventListener(event, ({ target }) => {
      const form = target.closest?.("form[data-draft]");
      if (form) keep(form);
    });
  }
  document.addEventListener("htmx:afterRequest", ({ detail }) => {
    const asked = detail.requestConfig.elt; // detail.elt is what of it still stands: the form, for a part that was redrawn
    if (detail.successful && asked.matches("form[data-draft]")) forget(asked);
  });
  document.addEventListener("submit", ({ target }) => {
    if (target.matches("form[data-draft]") && !window.htmx) forget(target);
  });

  // An answer to what the form was a moment ago would take back what has been written since. What was written since asks
  // for an answer of its own.
  const asOf = new WeakMap(); // what a request told, by request
  const told = (correction) => JSON.stringify(fieldsOf(correction).map(({ name, value, checked }) => [name, value, checked]));

  document.addEventListener("htmx:beforeRequest", ({ detail }) => {
    if (detail.elt.id === "correction") asOf.set(detail.xhr, told(detail.elt));
  });
  document.addEventListener("htmx:beforeSwap", ({ detail }) => {
    const before = asOf.get(detail.xhr);
    if (before && before !== told(detail.target)) detail.shouldSwap = false;
  });

  // ── A new item ───────────────────────────────────────────────────────────────────────────────────────────────

  // htmx gives the focus to what has the same id as before. On the next item one does not go on typing the last note:
  // keys are keys again.
  document.addEventListener("htmx:afterSwap", ({ target }) => {
    if (target.id === "desk") document.activeElement?.blur();
  });

  // Not sooner: until then nobody listens to what is changed in the new fields.
  document.addEventListener("htmx:afterSettle", ({ target }) => {
    if (target.id !== "correction") return;
    const form = find("form[data-draft]");
    if (redraws > 0 && form) restoreAll(form);
    else if (isAwaited) enterEditor();
    isAwaited = false;
  });

  let shown = null;
  onContent(() => {
    const desk = find("#desk");
    const form = find("form[data-draft]");
    if (desk === shown) {
      showMarked();
      const kept = heads().find((head) => spanOf(head) === inHand);
      if (kept) take(kept, false); // a turn that was asked for anew
      else take(heads().at(entering < 0 ? -1 : 0)); // in another window
      entering = 0;
      return;
    }
    shown = desk;
    redraws = 3;
    if (form) restoreAll(form);
    showMarked();
    const failing = select()?.value;
    const list = heads();
    inHand = "";
    take(list.find((head) => spanOf(head) === failing) ?? list.at(-1), Boolean(failing));
    find(".desk-list [aria-current]")?.scrollIntoView({ block: "nearest" });
  });
})();
