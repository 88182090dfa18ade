// The trajectory page: the chosen step is marked in the list and in the conversation, and scrolled into view.

(() => {
  "use strict";

  const chosen = () => new URLSearchParams(location.search).get("step") || "";

  function mark(spanId, scroll) {
    for (const link of document.querySelectorAll(".steps a[data-step]")) {
      if (link.dataset.step === spanId) {
        link.setAttribute("aria-current", "true");
        if (scroll) link.scrollIntoView({ block: "nearest" });
      } else {
        link.removeAttribute("aria-current");
      }
    }
    for (const turn of document.querySelectorAll(".turn.current")) turn.classList.remove("current");
    const turn = spanId && document.getElementById(`step-${spanId}`);
    if (turn) {
      turn.classList.add("current");
      if (scroll) turn.scrollIntoView({ block: "center" });
    }
  }

  document.addEventListener("htmx:afterRequest", (event) => {
    const link = event.detail.elt.closest("[data-step]");
    if (link && event.detail.successful) mark(link.dataset.step, true);
  });
  // The step beside the conversation belongs to the address; going back shows the step that was chosen then.
  window.addEventListener("popstate", () => location.reload());
  if (chosen()) mark(chosen(), true);
})();
