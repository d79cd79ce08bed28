// Leaves in the page, as JSON, what it shows for the choice of its address, and then for each of `choices`.
function shown() {
  const texts = (elements) => [...elements].map((element) => element.textContent);
  const traces = (chart) => chart.data.map(({ name, x, y }) => [name, x, y]);
  const byId = (selector, of) => Object.fromEntries([...document.querySelectorAll(selector)].map((found) => [found.id, of(found)]));
  return {
    cards: byId(".card", (card) => texts(card.children)),
    detail: [...document.querySelectorAll("#detail tr")].map((line) => texts(line.children)),
    charts: byId(".chart", traces),
    address: Object.fromEntries(new URLSearchParams(location.hash.slice(1))),
  };
}
function choose(chosen) {
  for (const form of document.forms) {
    form.reset();
    for (const [name, wanted] of Object.entries(chosen)) {
      const element = form.elements[name];
      const option = [...(element?.options ?? [])].find(({ text, value }) => text === wanted || value === wanted);
      if (element) element.value = option?.value ?? wanted;
    }
  }
  document.forms[0].dispatchEvent(new Event("change"));
}
const looks = [shown()];
for (const chosen of choices) {
  choose(chosen);
  looks.push(shown());
}
const told = document.createElement("pre");
told.id = "shown";
told.textContent = encodeURIComponent(JSON.stringify(looks));
document.body.append(told);
