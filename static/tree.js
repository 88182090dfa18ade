// JSON trees: the value or the path of what is under the pointer or the focus can be copied. The value comes from the
// server, exactly as it was sent; what the page shows has its hidden characters made visible.

(() => {
  "use strict";

  const tools = document.createElement("span");
  tools.className = "tree-tools";
  for (const [what, label] of [["value", "Copy the value"], ["path", "Copy the path"]]) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "btn link small", textContent: what, title: label });
    button.dataset.copyTree = what;
    tools.append(button);
  }

  /** The names on the way to a node, outermost first. */
  function pathOf(node) {
    const names = [];
    for (let item = node.closest("li[data-k]"); item; item = item.parentElement.closest("li[data-k]")) names.unshift(item.dataset.k);
    return names;
  }

  const plain = /^[A-Za-z_][A-Za-z0-9_]*$/;
  const written = (names) => names.map((name) => (/^\d+$/.test(name) ? `[${name}]` : plain.test(name) ? `.${name}` : `[${JSON.stringify(name)}]`)).join("").replace(/^\./, "");

  async function copy(text, button) {
    const label = button.textContent;
    const holder = document.createElement("button");
    holder.dataset.copyText = text;
    holder.hidden = true;
    document.body.append(holder);
    holder.click(); // app.js copies, also where there is no clipboard API
    holder.remove();
    button.textContent = "copied";
    setTimeout(() => (button.textContent = label), 1200);
  }

  async function copyValue(turn, names, button) {
    const query = names.map((name) => `&path=${encodeURIComponent(name)}`).join("") || "&copy";
    const answer = await fetch(`${turn.dataset.turn}${query}`);
    if (answer.ok) copy(await answer.text(), button);
    else window.Flywheel.say("Not copied: it is no longer there.", "bad");
  }

  function offer({ target }) {
    const row = target instanceof Element ? target.closest(".tree summary, .tree li[data-k]") : null;
    if (!row || tools.contains(target)) return;
    const summary = row.matches("summary") ? row : row.querySelector(":scope > details > summary");
    (summary ?? row).append(tools);
  }
  document.addEventListener("pointerover", offer);
  document.addEventListener("focusin", offer);

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-copy-tree], [data-copy-value]");
    const turn = button?.closest("[data-turn]");
    if (!turn) return;
    event.preventDefault(); // a summary would close
    const names = "copyTree" in button.dataset ? pathOf(button) : [];
    if (button.dataset.copyTree === "path") copy(written(names), button);
    else copyValue(turn, names, button);
  });
})();
