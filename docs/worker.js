// Browsers allow no workers to pages that are opened as files. The search runs in a hidden frame
// there, which has the two calls of a worker that it uses.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const waiting = [];
      this.send = (data) => waiting.push(data);
      const begin = () => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow;
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href);
        script.onload = () => {
          this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
          waiting.forEach(this.send);
        };
        inside.document.body.append(script);
      };
      if (document.body) begin();
      else addEventListener("DOMContentLoaded", begin);
    }
    postMessage(data) {
      this.send(data);
    }
    terminate() {
      this.frame.remove();
    }
  };
}
