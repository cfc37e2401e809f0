{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// What the address says: #place~name=value&…, so that a link shows what its sender saw: which
// finding is lit, how a flame graph is zoomed, which period is brushed. Without this a place is a
// place, as in any page.
"use strict";
const address = (function () {
  let kept = new Map();
  // What anybody may have typed.
  function plain(text) {
    try { return decodeURIComponent(text); } catch { return ""; }
  }
  function place() { return plain(location.hash.slice(1).split("~")[0]); }
  function read() {
    const words = location.hash.split("~").slice(1).join("~");
    return new Map(words.split("&").filter(Boolean).map(function (word) {
      const at = word.indexOf("=");
      return [word.slice(0, at), plain(word.slice(at + 1))];
    }));
  }
  function write() {
    // Until a page is loaded, its browser looks again for what the address names.
    if (document.readyState !== "complete") {
      addEventListener("load", function () { setTimeout(write); }, { once: true });
      return;
    }
    const words = Array.from(kept, function (pair) { return pair[0] + "=" + encodeURIComponent(pair[1]); });
    const hash = "#" + location.hash.slice(1).split("~")[0] + (words.length ? "~" + words.join("&") : "");
    if (hash === (location.hash || "#")) return;
    // A page in a frame of its own may not; then the state is this window's alone.
    try { history.replaceState(history.state, "", hash); } catch { }
  }
  function set(name, value) {
    if (value) kept.set(name, value); else kept.delete(name);
    write();
  }
  kept = read();
  // The browser does not know the part behind the place, and would go nowhere.
  function go() {
    const goal = document.getElementById(place()), box = goal && goal.getBoundingClientRect();
    if (!goal || (box.height && box.top >= 0 && box.top < innerHeight)) return;
    location.replace("#" + encodeURIComponent(place()));
    write();
  }
  if (kept.size) go();
  const changed = [];
  addEventListener("hashchange", function () {
    // A link has the place only, and an entry of the history what was then.
    const words = read();
    if (words.size) {
      kept = words;
      go();
    }
    write();
    changed.forEach(function (each) { each(); });
  });
  return {
    plain: plain, place: place, set: set, get: function (name) { return kept.get(name) || ""; },
    onchange: function (each) { changed.push(each); },
  };
})();
