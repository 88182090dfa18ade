// The trajectory page: the chosen step is marked in the list and in the conversation, and scrolled into view.

(() => {
  "use strict";

  const chosen = () => new URLSearchParams(location.search).get("step") || "";

  /** Bring into view within its pane; the page itself scrolls only where panes do not. */
  function reveal(element, place) {
    const pane = element.closest(".pane");
    if (pane.scrollHeight <= pane.clientHeight || getComputedStyle(pane).overflowY === "visible") {
      element.scrollIntoView({ block: place });
      return;
    }
    const inside = element.getBoundingClientRect();
    const frame = pane.getBoundingClientRect();
    if (inside.top >= frame.top + 48 && inside.bottom <= frame.bottom) return;
    pane.scrollTop += inside.top - frame.top - frame.height / 3;
  }

  function mark(spanId, scroll) {
    for (const link of document.querySelectorAll(".steps a[data-step]")) {
      if (link.dataset.step === spanId) {
        link.setAttribute("aria-current", "true");
        if (scroll) reveal(link, "nearest");
      } else {
        link.removeAttribute("aria-current");
      }
    }
    for (const turn of document.querySelectorAll(".turn.current")) turn.classList.remove("current");
    const turn = spanId && document.getElementById(`step-${spanId}`);
    if (turn) {
      turn.classList.add("current");
      if (scroll) reveal(turn, "center");
    }
  }

  document.addEventListener("htmx:afterRequest", (event) => {
    const link = event.detail.elt.closest("[data-step]");
    if (link && event.detail.successful) mark(link.dataset.step, true);
  });
  if (chosen()) mark(chosen(), true);
})();
