// The review queue: the step in hand, Enter, and drafts. What a key does is declared in the templates by data-key, except
// for the two keys that move the step in hand and Enter, which are added here.

(() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { keys, onContent } = window.Flywheel;
  const scope = "Review";
  let inHand = "";

  // ── The step in hand ─────────────────────────────────────────────────────────────────────────────────────────

  const heads = () => all("#talk [data-step]");
  const select = () => find("#failing-step");

  function take(head, scroll = true) {
    if (!head) return;
    inHand = head.dataset.step;
    for (const turn of all("#talk .turn")) {
      const own = turn.dataset.step === inHand || turn.dataset.stepPart === inHand;
      turn.classList.toggle("current", own);
    }
    if (scroll) head.scrollIntoView({ block: "nearest" });
  }

  function move(distance) {
    const list = heads();
    const at = list.findIndex((head) => head.dataset.step === inHand);
    take(list[Math.max(0, Math.min(list.length - 1, at < 0 ? 0 : at + distance))]);
  }

  /** Show in the conversation which step the form calls the failing one. */
  function showMarked() {
    const chosen = select()?.value ?? "";
    for (const turn of all("#talk .turn")) {
      turn.classList.toggle("marked", chosen !== "" && (turn.dataset.step === chosen || turn.dataset.stepPart === chosen));
    }
  }

  function mark() {
    const field = select();
    if (!field || !inHand) return;
    field.value = field.value === inHand ? "" : inHand;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  }

  keys.add({ key: "]", label: "Next step", scope, repeats: true, when: () => heads().length > 0, run: () => move(1) });
  keys.add({ key: "[", label: "Previous step", scope, repeats: true, when: () => heads().length > 0, run: () => move(-1) });
  keys.add({
    key: "Enter",
    label: "Done and next",
    scope,
    when: () => find("[data-done]") !== null,
    run: () => find("[data-done]").click(),
  });

  document.addEventListener("click", ({ target }) => {
    if (!(target instanceof Element)) return;
    if (target.closest("[data-mark-step]")) mark();
    const turn = target.closest("#talk .turn");
    const step = turn?.dataset.step ?? turn?.dataset.stepPart;
    if (step) take(heads().find((head) => head.dataset.step === step), false);
  });

  // ── Corrected action: ticking it opens the editor, typing in it ticks it ─────────────────────────────────────

  document.addEventListener("change", ({ target }) => {
    if (target.matches("#failing-step")) showMarked();
    if (target.matches("[data-correct]") && target.checked) find("#correction .editor :is(input:not([type=hidden]), select, textarea)")?.focus();
  });
  document.addEventListener("input", ({ target }) => {
    const box = target.closest("#correction .editor") && find("[data-correct]");
    if (box) box.checked = true;
  });

  // ── Drafts: what was written and not saved outlives a look at another item ───────────────────────────────────

  const draftKey = (form) => `flywheel.draft.${location.pathname.split("/")[2]}.${form.dataset.draft}`;
  const written = (form) => [...new FormData(form)].filter(([name]) => !["csrfmiddlewaretoken", "seen", "was", "was_tool"].includes(name));

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

  /** Put a draft back. Fields of another tool's arguments are left alone: the form no longer has them. */
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
    const form = detail.elt.closest?.("form[data-draft]");
    if (form && detail.successful && detail.elt === form) forget(form);
  });
  document.addEventListener("submit", ({ target }) => {
    if (target.matches("form[data-draft]") && !window.htmx) forget(target);
  });

  // ── A new item ───────────────────────────────────────────────────────────────────────────────────────────────

  let shown = null;
  onContent(() => {
    const desk = find("#desk");
    const form = find("form[data-draft]");
    if (desk === shown) return void showMarked();
    shown = desk;
    if (form) restore(form);
    showMarked();
    const failing = select()?.value;
    const list = heads();
    inHand = "";
    take(list.find((head) => head.dataset.step === failing) ?? list.at(-1), Boolean(failing));
    find(".desk-list [aria-current]")?.scrollIntoView({ block: "nearest" });
  });
})();
