// The connect page: change the framework without leaving, since the key is shown only once; look only while seen.

(() => {
  "use strict";

  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-shows]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    const shown = link.dataset.shows;
    for (const other of document.querySelectorAll("a[data-shows]")) {
      const isChosen = (other.dataset.holds ?? other.dataset.shows).split(" ").includes(shown);
      if (isChosen) other.setAttribute("aria-current", "true");
      else other.removeAttribute("aria-current");
    }
    for (const section of document.querySelectorAll("section[id^='with-']")) section.hidden = section.id !== `with-${shown}`;
    history.replaceState(history.state, "", link.href);
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.matches("[data-while-seen]")) event.preventDefault();
  });
})();
