// What every page does without being asked: theme, times, copy, confirm, messages, failed requests, selection, menus.
// Everything is declared by data-attributes (docs/design/ui-components.md) and handled on the document, so that what
// htmx swaps in needs no set-up. The keyboard is in keys.js, the charts in charts.js.

window.Flywheel = (() => {
  "use strict";

  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  /** Run `prepare(root)` on the page and on every fragment that htmx swaps in. */
  function onContent(prepare) {
    prepare(document);
    document.addEventListener("htmx:load", (event) => {
      if (event.detail.elt !== document.body) prepare(event.detail.elt.parentElement || event.detail.elt);
    });
  }

  // ── Theme: follow the system until the person chooses otherwise ──────────────────────────────────────────────

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themeNow = () => document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  const themeChanged = () => document.dispatchEvent(new CustomEvent("flywheel:theme"));

  function switchTheme() {
    const next = themeNow() === "dark" ? "light" : "dark";
    const asSystem = next === (dark.matches ? "dark" : "light");
    if (asSystem) delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (asSystem) localStorage.removeItem("flywheel.theme");
      else localStorage.setItem("flywheel.theme", next);
    } catch {
      // storage may be closed to us; the choice then lasts as long as the page
    }
    themeChanged();
  }
  dark.addEventListener("change", themeChanged);

  // ── Times: relative, exact on hover, in the person's zone. Says the same as `relative` in templatetags ─────────

  const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });
  const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

  function relative(moment, now) {
    const seconds = (now - moment) / 1000;
    const distance = Math.abs(seconds);
    if (distance < 45) return seconds >= 0 ? "just now" : "in a moment";
    let text;
    if (distance < 3570) text = `${Math.max(1, Math.round(distance / 60))}\u00a0min`;
    else if (distance < 84600) text = `${Math.max(1, Math.round(distance / 3600))}\u00a0h`;
    else if (distance < 30 * 86400) text = `${Math.max(1, Math.round(distance / 86400))}\u00a0d`;
    else return day.format(moment);
    return seconds >= 0 ? `${text} ago` : `in ${text}`;
  }

  function tellTimes(root) {
    const now = Date.now();
    for (const time of all("time[datetime*=T]", root)) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.valueOf())) continue;
      const text = "exact" in time.dataset ? exact.format(moment) : relative(moment, now);
      if (time.textContent !== text) time.textContent = text;
      time.title = exact.format(moment);
    }
  }

  // ── Messages and copying ─────────────────────────────────────────────────────────────────────────────────────

  /** Show a message above the page; good news leaves by itself. */
  function say(text, tone = "") {
    const message = document.createElement("p");
    message.className = `message ${tone}`;
    const words = document.createElement("span");
    words.textContent = text;
    const dismiss = document.createElement("button");
    Object.assign(dismiss, { type: "button", className: "btn ghost icon-btn", textContent: "✕", ariaLabel: "Dismiss" });
    dismiss.dataset.dismiss = "";
    message.append(words, dismiss);
    find("#messages").append(message);
    if (tone === "ok" || tone === "success") setTimeout(() => message.remove(), 6000);
  }

  async function copy(button) {
    const source = button.dataset.copy && find(button.dataset.copy);
    const text = button.dataset.copyText ?? (source ? (source.value ?? source.textContent) : "");
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Plain http on a local network has no clipboard API.
      const field = document.createElement("textarea");
      field.value = text;
      field.className = "sr-only";
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    const before = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = before), 1200);
  }

  // ── Confirm, with the name typed again where it matters ──────────────────────────────────────────────────────

  /** Ask; the promise answers true only for a clear yes. */
  function confirm(text, { yes = "Go ahead", retype = "", danger = true } = {}) {
    const dialog = find("#confirm");
    const button = find("[data-confirm-yes]", dialog);
    const field = find("[data-retype-field]", dialog);
    const input = find("input", field);
    find("#confirm-text").textContent = text;
    button.textContent = yes;
    button.classList.toggle("danger", danger);
    field.hidden = !retype;
    find("label", field).textContent = `Type ${retype} to go on`;
    input.value = "";
    input.oninput = () => (button.disabled = retype !== "" && input.value.trim() !== retype);
    input.oninput();
    dialog.returnValue = "no";
    dialog.showModal();
    (retype ? input : find("[data-confirm-no]", dialog)).focus();
    return new Promise((resolve) => {
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
    });
  }

  const confirmed = new WeakSet();

  async function askFirst(event, element, again) {
    if (confirmed.delete(element)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    // What is missing is told before a name is typed again for nothing. A form that submits has been looked at already.
    if (element.type === "submit" && !element.formNoValidate && element.form && !element.form.reportValidity()) return;
    const { confirm: text, confirmYes: yes, retype } = element.dataset;
    if (await confirm(text, { yes: yes || element.textContent.trim().slice(0, 40) || undefined, retype })) {
      confirmed.add(element);
      again();
    }
  }

  // Capture, so that htmx and the browser only see what has been confirmed.
  document.addEventListener(
    "click",
    (event) => {
      const element = event.target.closest?.("[data-confirm]:not(form)");
      if (element) askFirst(event, element, () => element.click());
    },
    true,
  );
  document.addEventListener(
    "submit",
    (event) => {
      const form = event.target;
      if (!form.matches("form[data-confirm]")) return;
      const submitter = event.submitter;
      if (!form.dataset.confirmYes && submitter) form.dataset.confirmYes = submitter.textContent.trim();
      askFirst(event, form, () => form.requestSubmit(submitter));
    },
    true,
  );

  // ── Leaving: a form whose data-unsaved is "yes" holds what nobody has kept; typing in it makes it so ────────────

  document.addEventListener("input", ({ target }) => {
    const form = target.closest?.("form[data-unsaved]");
    if (form) form.dataset.unsaved = "yes";
  });
  document.addEventListener("submit", ({ target }) => {
    if (target.matches("form[data-unsaved]")) target.dataset.unsaved = "";
  });
  addEventListener("beforeunload", (event) => {
    if (find("form[data-unsaved='yes']")) event.preventDefault();
  });

  // ── Requests by htmx: which saves are in flight, and what to say when one fails ──────────────────────────────

  const saving = new Set();
  const CAUSES = {
    400: "the request was not understood",
    401: "you are signed out; sign in in another tab, then try again",
    403: "your role does not include this, or this page is too old; reload it",
    404: "it no longer exists, or you are not a member of its project",
    409: "someone else changed it first; reload to see their change",
    413: "it is too large",
    429: "too many requests; wait a moment",
  };

  let failed = null;

  function tellFailure(event, cause) {
    failed = event.detail.elt;
    const reads = (event.detail.requestConfig?.verb || "get") === "get";
    const banner = find("#banner");
    banner.replaceChildren();
    const words = document.createElement("span");
    words.textContent = reads ? `Not loaded: ${cause}.` : `Not saved: ${cause}. What you wrote is kept.`;
    const close = document.createElement("button");
    Object.assign(close, { type: "button", className: "btn small", textContent: "Dismiss" });
    close.addEventListener("click", () => (banner.hidden = true));
    banner.append(words, close);
    banner.hidden = false;
  }

  // A page that loads itself anew in the moment in which somebody leaves it would take back their click.
  let leftAt = -Infinity;
  addEventListener("beforeunload", () => (leftAt = performance.now()));
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    const isLeaving = performance.now() - leftAt < 10_000;
    if (isLeaving && event.detail.xhr.getResponseHeader("HX-Refresh")) event.preventDefault();
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!event.detail.elt.matches("[data-saving]")) return;
    const { xhr } = event.detail;
    saving.add(xhr);
    xhr.addEventListener("loadend", () => saving.delete(xhr));
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    // What polls beside a form that could not be saved does not take back that it was not.
    if (event.detail.successful && (event.detail.elt === failed || !failed?.isConnected)) find("#banner").hidden = true;
  });
  document.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    const plain = (xhr.getResponseHeader("Content-Type") || "").startsWith("text/plain");
    const told = plain ? xhr.responseText.trim().slice(0, 300).replace(/\.$/, "") : "";
    tellFailure(event, told || CAUSES[xhr.status] || `the server answered ${xhr.status}; its log says why`);
  });
  document.addEventListener("htmx:sendError", (event) => tellFailure(event, "the server cannot be reached"));
  document.addEventListener("htmx:timeout", (event) => tellFailure(event, "the server took too long"));

  // ── Selecting rows ───────────────────────────────────────────────────────────────────────────────────────────

  let lastTick = null;
  const ticksOf = (table) => all("tbody .tick input[type=checkbox]:not(:disabled)", table);

  function countTicks() {
    const bulk = find("[data-bulk]");
    const ticks = all("table.data tbody .tick input[type=checkbox]");
    const chosen = ticks.filter((tick) => tick.checked).length;
    if (bulk) {
      bulk.hidden = chosen === 0;
      const isAll = find("[data-all-matching]:checked") && chosen === ticks.length;
      for (const place of all("[data-selected-count]", bulk)) place.textContent = isAll ? "all" : String(chosen);
    }
    for (const box of all("[data-select-all]")) {
      const own = ticksOf(box.closest("table"));
      const on = own.filter((tick) => tick.checked).length;
      box.checked = own.length > 0 && on === own.length;
      box.indeterminate = on > 0 && on < own.length;
    }
  }

  document.addEventListener("change", ({ target }) => {
    if (target.matches("[data-select-all]")) {
      for (const tick of ticksOf(target.closest("table"))) tick.checked = target.checked;
    }
    if (target.matches(".tick input")) countTicks();
    if (target.matches("[data-submit]")) target.form.requestSubmit();
  });

  function tickRange(tick) {
    const ticks = ticksOf(tick.closest("table"));
    const [from, to] = [ticks.indexOf(lastTick), ticks.indexOf(tick)].sort((a, b) => a - b);
    if (from >= 0) for (const each of ticks.slice(from, to + 1)) each.checked = tick.checked;
  }

  // ── Clicks and menus ─────────────────────────────────────────────────────────────────────────────────────────

  const interactive = "a, button, input, select, textarea, label, summary";

  document.addEventListener("click", (event) => {
    const target = event.target;
    if (!(target instanceof Element)) return;
    for (const menu of all("details.menu[open]")) if (!menu.contains(target)) menu.open = false;

    const tick = target.closest("tbody .tick input");
    if (tick) {
      if (event.shiftKey && lastTick) tickRange(tick);
      lastTick = tick;
      countTicks();
      return;
    }
    const button = target.closest("[data-copy], [data-copy-text]");
    if (button) return void copy(button);
    if (target.closest("[data-dismiss]")) return void target.closest(".message").remove();
    if (target.closest("[data-theme-switch]")) return void switchTheme();
    const opener = target.closest("[data-opens]");
    if (opener) return void find(opener.dataset.opens).showModal();
    if (target.closest("[data-closes]")) return void target.closest("dialog").close();
    if (target.closest("[data-confirm-no]")) return void find("#confirm").close("no");

    const row = target.closest("tr[data-href]");
    if (row && !target.closest(interactive) && getSelection().isCollapsed) {
      if (event.ctrlKey || event.metaKey) window.open(row.dataset.href, "_blank", "noopener");
      else location.assign(row.dataset.href);
    }
  });
  // A field whose text one is more likely to write anew than to go on with.
  document.addEventListener("focusin", ({ target }) => {
    if (target.matches("input[data-select]")) target.select();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of all("details.menu[open]")) {
      menu.open = false;
      find("summary", menu).focus();
    }
  });
  // A <dialog> closes when its backdrop is clicked: the only click whose target is the dialog itself.
  document.addEventListener("click", ({ target }) => {
    if (target instanceof HTMLDialogElement) target.close("no");
  });

  // ── Logs that keep their end in view, until someone scrolls up ───────────────────────────────────────────────

  const scrolledTo = new Map();
  document.addEventListener("htmx:beforeSwap", () => {
    for (const log of all("[data-follow]")) {
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
      scrolledTo.set(log.id, atEnd ? null : log.scrollTop);
    }
  });
  function follow(root) {
    for (const log of all("[data-follow]", root)) log.scrollTop = scrolledTo.get(log.id) ?? log.scrollHeight;
  }

  // ── What scrolls is reached by the keyboard, where nothing in it is ──────────────────────────────────────────

  const scrolling = ".table-scroll:not([role=region]), pre.json";
  const reached = "a[href], button, input, select, textarea, summary";
  function reach(root) {
    for (const box of all(scrolling, root)) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls && !find(reached, box)) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  }
  addEventListener("resize", () => reach(document));
  document.addEventListener("toggle", ({ target }) => reach(target), true);

  // ── Panels: of a [data-panels] one part at a time, chosen by its tabs and by where the address leads ─────────

  const chosen = new Map(); // panel by the id of its root: what htmx swaps in comes as if nobody had chosen
  const led = () => document.getElementById(location.hash.slice(1));

  function showPanels() {
    const target = led();
    for (const root of all("[data-panels]")) {
      const panels = all("[data-panel]", root);
      const wanted = panels.find((panel) => panel.contains(target)) ?? panels.find(({ id }) => id === chosen.get(root.id));
      const shown = wanted ?? panels.find((panel) => !panel.hidden);
      if (!shown) continue;
      chosen.set(root.id, shown.id);
      for (const panel of panels) panel.hidden = panel !== shown;
      for (const tab of all(".tabs a[href^='#']", root)) tab.setAttribute("aria-current", String(tab.hash === `#${shown.id}`));
      follow(shown);
      reach(shown);
    }
  }
  addEventListener("hashchange", () => {
    showPanels();
    const target = led();
    if (!target?.closest("[data-panel]") || target.matches("[data-panel]")) return;
    target.scrollIntoView(); // nobody could go there while it was hidden
    if (target.matches(reached)) target.focus();
  });

  // ── What was unfolded stays so when its part of the page comes anew ─────────────────────────────────────────

  const unfolded = new Set();
  document.addEventListener("htmx:beforeSwap", () => {
    for (const fold of all("details[id]")) unfolded[fold.open ? "add" : "delete"](fold.id);
  });

  // ── The rail's counts, where a part of the page that came anew knows better ──────────────────────────────────

  function tellRail(root) {
    for (const { dataset } of all("[data-rail-count]", root)) {
      for (const count of all(`a[href="${dataset.railUrl}"] .rail-count`)) {
        count.textContent = dataset.railCount;
        count.hidden = dataset.railCount === "0";
      }
    }
  }

  // ── What a term means: on hover, focus and tap, in the top layer ─────────────────────────────────────────────

  const meaning = Object.assign(document.createElement("div"), { className: "meaning", popover: "manual", role: "status" });
  document.body.append(meaning);

  function explain(term) {
    meaning.textContent = term.dataset.means;
    meaning.showPopover();
    const { left, top, bottom } = term.getBoundingClientRect();
    const below = bottom + 4 + meaning.offsetHeight < innerHeight;
    meaning.style.left = `${Math.max(8, Math.min(left, innerWidth - meaning.offsetWidth - 8))}px`;
    meaning.style.top = `${below ? bottom + 4 : top - meaning.offsetHeight - 4}px`;
  }
  for (const begins of ["pointerover", "focusin"]) {
    document.addEventListener(begins, ({ target }) => {
      const term = target instanceof Element && target.closest(".term");
      if (term) explain(term);
    });
  }
  for (const ends of ["pointerout", "focusout", "scroll"]) {
    document.addEventListener(ends, () => meaning.matches(":popover-open") && meaning.hidePopover(), true);
  }

  onContent((root) => {
    tellRail(root);
    tellTimes(root);
    countTicks();
    follow(root);
    reach(root);
    for (const fold of all("details[id]", root)) fold.open ||= unfolded.has(fold.id);
    showPanels();
  });
  setInterval(() => tellTimes(document), 30_000);

  return { say, confirm, onContent, saving };
})();
