// The list of trajectories: what a row is about, shown beside it, and all that match as one selection.

(() => {
  "use strict";

  const panel = document.getElementById("preview");
  const DELAY_MS = 350;
  let waiting = 0;
  let shownFor = null;

  // ── Preview of a row, on hover and at the row of the keyboard ────────────────────────────────────────────────

  function hide() {
    clearTimeout(waiting);
    shownFor = null;
    if (panel) panel.hidden = true;
  }

  function later(row) {
    if (!panel || row === shownFor || matchMedia("(hover: none)").matches) return;
    hide();
    shownFor = row;
    waiting = setTimeout(() => htmx.ajax("GET", row.dataset.preview, { source: panel, target: panel }), DELAY_MS);
  }

  // A preview that does not come is none: the row says enough by itself.
  for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
    panel?.addEventListener(name, (event) => event.stopPropagation());
  }
  // What arrives for a row that has been left meanwhile is not shown.
  panel?.addEventListener("htmx:beforeSwap", ({ detail }) => {
    detail.shouldSwap &&= detail.pathInfo.requestPath === shownFor?.dataset.preview && shownFor.isConnected;
  });
  panel?.addEventListener("htmx:afterSwap", () => {
    panel.hidden = false;
    place(shownFor);
  });

  /** Below the row or above it, whichever has the room; never over it. */
  function place(row) {
    const { top, bottom, left } = row.getBoundingClientRect();
    const height = panel.offsetHeight;
    const below = bottom + height + 8 < innerHeight || top < height + 8;
    panel.style.top = `${below ? bottom + 4 : top - height - 4}px`;
    panel.style.left = `${Math.min(Math.max(left, 0) + 120, innerWidth - panel.offsetWidth - 16)}px`;
  }

  document.addEventListener("mouseover", ({ target }) => {
    if (!(target instanceof Element) || target.closest("#preview")) return;
    const row = target.closest("tr[data-preview]");
    if (row) later(row);
    else if (shownFor) hide();
  });
  document.addEventListener("focusin", ({ target }) => {
    const row = target instanceof Element && target.closest("tr[data-preview]");
    if (row) later(row);
    else hide();
  });
  document.addEventListener("scroll", hide, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });

  // ── All that match ───────────────────────────────────────────────────────────────────────────────────────────

  let takesAll = false;

  document.addEventListener("change", ({ target }) => {
    const all = document.querySelector("[data-all-matching]");
    if (!all || !(target instanceof Element)) return;
    if (target === all) {
      takesAll = true;
      const head = document.querySelector("[data-select-all]");
      head.checked = all.checked;
      head.dispatchEvent(new Event("change", { bubbles: true }));
      takesAll = false;
    } else if (target.matches(".tick input") && !takesAll) {
      all.checked = false;
    }
  });
})();
