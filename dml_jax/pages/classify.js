let asked = 0;  // id of the newest request

function tile(best, picture) {
  const shown = picture ? [element("img", { src: `data:image/jpeg;base64,${picture}`, alt: best.class })] : [];
  return element("div", { className: "tile" }, ...shown,
    element("span", {}, best.cosine.toFixed(3)), element("span", {}, best.class));
}
async function classify(chosen) {
  if (!chosen) return;
  const mine = ++asked;
  say(`classifying ${chosen.name}`);
  try {
    const reply = await fetch("?pictures=1", { method: "POST", body: chosen }), answer = await reply.json();
    if (mine !== asked) return;  // another photograph has been chosen since
    if (!reply.ok) throw new Error(answer.error);
    at("query").replaceChildren(preview(chosen), element("p", {}, element("b", {}, answer.class)),
      element("p", {}, `score ${answer.score.toFixed(3)}, unknown below ${answer.threshold.toFixed(3)}`));
    at("near").replaceChildren(...answer.classes.map((best, i) => tile(best, answer.pictures[i])));
    at("found").hidden = false;
    say(`${chosen.name}: ${answer.class}; nearest: ${answer.classes[0].class}, cosine ${answer.cosine.toFixed(3)}.`);
  } catch (error) { if (mine === asked) say(`${chosen.name}: ${error.message}`, true); }
}
onPhotograph(classify);
