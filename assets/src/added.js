// added calls prepare for every element of the page that matches, and for those
// that come in later.
export function added(selector, prepare) {
  const look = (root) => {
    if (root.nodeType !== Node.ELEMENT_NODE) return;
    if (root.matches(selector)) prepare(root);
    root.querySelectorAll(selector).forEach(prepare);
  };
  look(document.documentElement);
  new MutationObserver((changes) => {
    for (const change of changes) change.addedNodes.forEach(look);
  }).observe(document.documentElement, { childList: true, subtree: true });
}
