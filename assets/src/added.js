// added calls prepare for every element that matches, now and when one is inserted later.
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
