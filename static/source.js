// Line numbers beside a textarea with source. Without it the textarea is one all the same.

(() => {
  "use strict";

  function number(area) {
    const lines = area.previousElementSibling;
    const count = area.value.split("\n").length;
    if (lines.childElementCount !== 0 || lines.dataset.count !== String(count)) {
      lines.textContent = Array.from({ length: count }, (_, index) => index + 1).join("\n");
      lines.dataset.count = String(count);
    }
    lines.scrollTop = area.scrollTop;
  }

  function prepare(root) {
    for (const area of root.querySelectorAll("[data-source] textarea")) number(area);
  }

  const onArea = (event) => {
    if (event.target.matches && event.target.matches("[data-source] textarea")) number(event.target);
  };
  document.addEventListener("input", onArea);
  document.addEventListener("scroll", onArea, true);
  document.addEventListener("htmx:load", () => prepare(document));
  prepare(document);
})();
