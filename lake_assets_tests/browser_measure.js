// What of a page a person would stumble over, as one value. Sizes are in CSS pixels.
(() => {
  const box = (element) => element.getBoundingClientRect();
  const isSeen = (element) => box(element).width > 0 && box(element).height > 0;
  const name = (element) => `${element.tagName.toLowerCase()}.${element.className}: ${element.textContent.trim().slice(0, 40)}`;
  const scrolls = (element) => ["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX);
  const isInScroller = (element) => {
    for (let up = element; up !== document.body; up = up.parentElement) if (scrolls(up)) return true;
    return false;
  };
  const all = [...document.querySelectorAll("main *")].filter(isSeen);
  const overflow = all.filter((element) => box(element).right > innerWidth + 1 && !isInScroller(element)).map(name);

  // Neighbours: the children of one block must not lie over each other.
  const overlaps = [];
  for (const parent of [...document.querySelectorAll("main, header, .path, .cards, .grid, .stages, .strip, .panel, form")]) {
    const children = [...parent.children].filter(isSeen);
    for (const [i, one] of children.entries()) for (const other of children.slice(i + 1)) {
      const [a, b] = [box(one), box(other)];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 1) overlaps.push(`${name(one)} × ${name(other)}`);
    }
  }
  const texts = all.filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  const small = texts.filter((element) => parseFloat(getComputedStyle(element).fontSize) < 11 && !element.closest("svg")).map(name);
  const cells = [...document.querySelectorAll("td, th")].filter((cell) => isSeen(cell) && cell.textContent.trim());
  const squeezed = cells.filter((cell) => box(cell).width < 24 || cell.scrollWidth > cell.clientWidth + 1).map(name);
  const verdict = document.getElementById("verdict");
  return {
    width: document.documentElement.scrollWidth,
    overflow, overlaps, small, squeezed,
    verdict: verdict && box(verdict).top >= 0 && box(verdict).bottom <= innerHeight ? verdict.innerText : null,
    stages: [...document.querySelectorAll("#path .card b")].map((stage) => stage.textContent),
    headings: [...document.querySelectorAll("h2")].map((heading) => heading.textContent),
    charts: [...document.querySelectorAll("[id^=chart-]")].map((chart) => chart.querySelectorAll(".main-svg").length > 0),
    ground: getComputedStyle(document.body).backgroundColor,
  };
})()
