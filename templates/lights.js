{# SPDX-License-Identifier: LGPL-2.1-or-later #}
// Pointing at a finding lights what it stands on: its classes in the bar of memory, its cells in the
// heat map and the pageblock map, its zones, its rows. A finding that was followed stays lit, and is
// in the address.
"use strict";
(function () {
  const LIT = "lit", DRAWN = "drawn";
  const articles = new Map(Array.from(document.querySelectorAll("article[data-lights]"), function (article) {
    return [article.id, article];
  }));
  let pointed = null;

  function each(selector, act) { document.querySelectorAll(selector).forEach(act); }
  // Whether one of the proofs has this place; a proof that does not name a column has all of it.
  function has(proofs, here) {
    return proofs.some(function (proof) {
      return Object.keys(here).every(function (name) {
        return !(name in proof) || proof[name].includes(here[name]);
      }) && (!("order" in here) || !("least" in proof) || here.order >= proof.least);
    });
  }
  function cells(lights) {
    if (!lights.free.length) return [];
    const found = [];
    each("table.heat[data-node]", function (table) {
      const node = Number(table.dataset.node), zone = table.dataset.zone;
      const orders = Array.from(table.tHead.rows[0].cells, function (cell) {
        return parseInt(cell.firstChild.textContent, 10);  // the size is behind it
      });
      Array.from(table.tBodies[0].rows).forEach(function (row) {
        if (!row.dataset.type) return;
        Array.from(row.cells).forEach(function (cell, at) {
          if (Number.isNaN(orders[at])) return;
          const here = { node: node, zone: zone, migratetype: row.dataset.type, order: orders[at] };
          if (has(lights.free, here)) found.push(cell);
        });
      });
    });
    return found;
  }
  function marked(lights) {
    const found = cells(lights);
    function add(element) { found.push(element); }
    lights.classes.forEach(function (name) { each('[data-class="' + CSS.escape(name) + '"]', add); });
    lights.looks.forEach(function (look) { each(".map .cells path." + look, add); });
    each(".zone[data-node]", function (zone) {
      const here = { node: Number(zone.dataset.node), zone: zone.dataset.zone };
      if (lights.zones.length && has(lights.zones, here)) add(zone);
    });
    each('tr[data-of~="' + lights.number + '"]', add);
    return found;
  }
  // The zones of the pageblock map that are not meant, where some are.
  function veil(lights) {
    const veils = Array.from(document.querySelectorAll(".map .veil"));
    const away = veils.filter(function (zone) {
      return !has(lights.zones, { node: Number(zone.dataset.node), zone: zone.dataset.zone });
    });
    if (away.length === veils.length) return;
    away.forEach(function (zone) { zone.classList.add(DRAWN); });
  }
  function show() {
    const id = pointed || address.get("lit"), article = articles.get(id);
    each("." + LIT, function (element) { element.classList.remove(LIT); });
    each(".map.some-lit", function (map) { map.classList.remove("some-lit"); });
    each("." + DRAWN, function (zone) { zone.classList.remove(DRAWN); });
    if (!article) return;
    const lights = JSON.parse(article.dataset.lights), found = marked(lights);
    veil(lights);
    found.concat([article]).forEach(function (element) {
      element.classList.add(LIT);
      const map = element.closest(".map");
      if (map) map.classList.add("some-lit");
    });
    each('nav a[href="#' + id + '"]', function (link) { link.classList.add(LIT); });
  }
  // Which finding something belongs to: itself, a link to it, or a row that it stands on.
  function finding(element) {
    const article = element.closest && element.closest("article[data-lights]");
    if (article) return article.id;
    const link = element.closest && element.closest('a[href^="#finding-"]');
    const id = link && link.hash.slice(1).split("~")[0];
    return articles.has(id) ? id : null;
  }
  function point(event) {
    const id = finding(event.target);
    if (id === pointed) return;
    pointed = id;
    show();
  }
  // Not what is scrolled below a mouse that rests.
  document.addEventListener("mousemove", point);
  document.addEventListener("focusin", point);
  function follow() {
    const place = address.place(), row = /^proof-([0-9]+)-/.exec(place);
    articles.forEach(function (article, id) {
      const own = row && JSON.parse(article.dataset.lights).number === Number(row[1]);
      if (id === place || own) address.set("lit", id);
    });
    show();
    told();
  }
  function out() {
    address.set("lit", "");
    pointed = null;
    show();
    told();
  }
  // What is lit is said, and can be put out.
  const chip = document.createElement("p");
  function told() {
    const article = articles.get(address.get("lit"));
    chip.replaceChildren();
    chip.hidden = !article;
    if (!article) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Clear";
    button.addEventListener("click", out);
    chip.append("Highlighted: " + article.dataset.title + " ", button);
  }
  each(".lit-chip", function (old) { old.remove(); });
  chip.className = "lit-chip";
  chip.setAttribute("role", "status");
  // Below the contents: what is there must not move under the pointer.
  if (articles.size) document.getElementById("contents").append(chip);
  address.onchange(follow);
  follow();
})();
