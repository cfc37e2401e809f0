// SPDX-License-Identifier: LGPL-2.1-or-later
// What the theme leaves out for keyboards and screen readers, as it makes these by itself.
const mend = () => {
    for (const table of document.querySelectorAll('.md-typeset__scrollwrap')) table.tabIndex = 0;
    document.querySelector('.md-search[role=dialog]')?.setAttribute('aria-label', 'Search');
    document.querySelectorAll('.md-code__nav').forEach((nav, n) => {
        nav.setAttribute('aria-label', `Code ${n + 1}`);
    });
};
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true });
mend();
