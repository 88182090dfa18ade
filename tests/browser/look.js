// What on this page is not ours: an element, a handler, an address, a script that ran, a character that is not seen.

() => {
  const found = new Set();
  const say = (what, element) => found.add(`${what}: ${element.outerHTML.slice(0, 160)}`);
  const never =
    "[pwn], iframe, object, embed, base, applet, math, style, marquee, video, audio, img, image, foreignobject, template, " +
    "xmp, plaintext, frameset, animate, set, use, portal, meta[http-equiv]";
  const addresses =
    "href src action formaction xlink:href data poster ping background hx-get hx-post hx-put hx-delete hx-replace-url " +
    "data-href data-preview data-people";
  const isOurs = (value) => {
    try {
      return new URL(value, location.href).origin === location.origin;
    } catch {
      return false;
    }
  };

  if (window.pwned !== undefined) found.add("a script of theirs ran");
  for (const element of document.querySelectorAll("*")) {
    if (element.matches(never)) say("never ours", element);
    const isData = element.matches("script[type='application/json']");
    if (element.matches("script, link") && !isData) {
      const source = element.getAttribute(element.matches("link") ? "href" : "src");
      if (!source?.startsWith("/static/")) say("loads", element);
    }
    for (const { name, value } of element.attributes) {
      if (/^(on|hx-on|data-hx|hx-vals)/i.test(name)) say(`handler ${name}`, element);
      if (addresses.split(" ").includes(name) && !isOurs(value)) say(`leads away by ${name}`, element);
    }
  }

  // Controls, zero-width and direction characters, separators, fillers, tags: `safe_text` shows each by its number.
  const hidden =
    /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\u{e0000}-\u{e007f}]/u;
  const texts = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (!hidden.test(data) || parentElement.closest("script, textarea")) continue;
    const path = [];
    for (let at = parentElement; at && path.length < 4; at = at.parentElement) {
      path.unshift(at.classList[0] ? `${at.localName}.${at.classList[0]}` : at.localName);
    }
    found.add(`hidden characters in ${path.join(" > ")}: ${data.trim().slice(0, 60)}`);
  }
  return [...found];
};
