{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// What a shape of a picture is, at the pointer or where it was touched: by itself a browser says it
// late, and on a telephone not at all.
"use strict";
(function () {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.ariaHidden = "true"; // which the shape's title is not
  let title = null, last = "";
  function leave() {
    if (title) title.textContent = tip.textContent;
    title = null;
    tip.remove(); // a page that a browser saves has none
  }
  function titled(shape) {
    for (; shape instanceof SVGElement; shape = shape.parentNode) {
      const found = shape.querySelector(":scope > title");
      if (found) return found;
    }
    return null;
  }
  function show(event) {
    const found = titled(event.target);
    if (found !== title) {
      leave();
      if (!found || !found.textContent) return;
      title = found;
      tip.textContent = title.textContent;
      title.textContent = ""; // the browser would say it a second time
      document.body.append(tip);
    }
    if (!title) return;
    const x = event.clientX + 12, y = event.clientY + 16, below = y + tip.offsetHeight <= innerHeight;
    tip.style.left = Math.max(0, Math.min(x, document.documentElement.clientWidth - tip.offsetWidth)) + "px";
    tip.style.top = Math.max(0, below ? y : event.clientY - 8 - tip.offsetHeight) + "px";
  }
  addEventListener("pointermove", function (event) {
    // A page that moves under a mouse is no question.
    const at = event.clientX + " " + event.clientY;
    if (at !== last) show(event);
    last = at;
  });
  // A finger does not move.
  addEventListener("pointerover", function (event) { if (event.pointerType !== "mouse") show(event); });
  addEventListener("scroll", leave, true);
  addEventListener("keydown", leave, true);
  addEventListener("click", leave, true);
  document.documentElement.addEventListener("mouseleave", leave);
})();
