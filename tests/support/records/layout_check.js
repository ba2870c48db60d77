// Runs in a page: reports what is wider than the window and which texts lie over one another.
function texts(root) {
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (box.width > 1 && box.height > 1) found.push({ box, text: node.data.trim().slice(0, 40) });
  }
  return found;
}

function overlaps(root) {
  const found = texts(root);
  const pairs = [];
  for (let i = 0; i < found.length; i++)
    for (let j = i + 1; j < found.length; j++) {
      const [a, b] = [found[i].box, found[j].box];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > 0.4 * Math.min(a.height, b.height)) pairs.push(`${found[i].text} | ${found[j].text}`);
    }
  return pairs;
}

addEventListener("load", () => {
  const width = () => document.documentElement.scrollWidth;
  const folded = width();
  for (const one of document.querySelectorAll("details:not(.record)")) one.open = true;
  const places = "header, nav, .claim, figure, #answer, h2, thead tr, details.part > summary";
  parent.postMessage({
    page: name,
    window: innerWidth,
    folded,
    open: width(),
    overlaps: [...document.querySelectorAll(places)].flatMap(overlaps).slice(0, 8),
  }, "*");
});
