// A drawing canvas. The drawing stays in the page until a button sends it to the studio.
const sheet = element.querySelector("canvas"), pen = sheet.getContext("2d");
let ink = element.querySelector("[data-ink]").dataset.ink, drawing = false;
const wipe = () => pen.clearRect(0, 0, sheet.width, sheet.height);
// The drawing that is sent: ink on black, without the picture under the canvas.
sheet.drawn = () => {
  const copy = sheet.cloneNode(), flat = copy.getContext("2d");
  flat.fillRect(0, 0, copy.width, copy.height);
  flat.drawImage(sheet, 0, 0);
  return copy.toDataURL("image/png");
};
const at = (event) => {
  const box = sheet.getBoundingClientRect();
  return [(event.clientX - box.left) * sheet.width / box.width,
          (event.clientY - box.top) * sheet.height / box.height];
};
const line = (event) => { pen.lineTo(...at(event)); pen.stroke(); };
sheet.onpointerdown = (event) => {
  sheet.setPointerCapture(event.pointerId);
  pen.lineWidth = element.querySelector("input").value;
  pen.lineCap = pen.lineJoin = "round";
  pen.strokeStyle = ink;
  pen.beginPath();
  pen.moveTo(...at(event));
  drawing = true;
  line(event);
};
sheet.onpointermove = (event) => { if (drawing) line(event); };
sheet.onpointerup = sheet.onpointercancel = () => { drawing = false; };
element.querySelectorAll("[data-ink]").forEach((b) => { b.onclick = () => { ink = b.dataset.ink; }; });
element.querySelector("[data-wipe]").onclick = wipe;
