#!/usr/bin/env python3
"""The chat page in a browser: what a visitor types is answered in the page, guesses are coloured, Stop and New chat do what they
say, errors are shown. Talks to chromedriver itself; skipped where no browser is installed (Debian: chromium, chromium-driver)."""
import http.client
import json
import re
import shutil
import subprocess
import unittest

from served import PROMPT, Served

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


class Browser:
  """The few commands of the WebDriver protocol that the tests need."""

  def __init__(self):
    self.process = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in self.process.stdout:
      if found := re.search(r"successfully on port (\d+)", line):
        self.port = int(found[1])
        break
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,800"]
    options = {"binary": CHROMIUM, "args": flags}
    wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
    self.session = ""
    if not hasattr(self, "port"):
      raise OSError("chromedriver names no port")
    self.session = "/session/" + self.ask("POST", "/session", {"capabilities": wanted})["sessionId"]

  def ask(self, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
    connection.request(method, self.session + path, json.dumps(body) if body is not None else None)
    value = json.loads(connection.getresponse().read())["value"]
    connection.close()
    if isinstance(value, dict) and "error" in value:
      raise AssertionError(value["message"])
    return value

  def open(self, url):
    self.ask("POST", "/url", {"url": url})

  def run(self, script):
    at = "const at = (id) => document.getElementById(id); "
    return self.ask("POST", "/execute/sync", {"script": at + script, "args": []})

  def element(self, css):
    return "/element/" + next(iter(self.ask("POST", "/element", {"using": "css selector", "value": css}).values()))

  def click(self, css):
    self.ask("POST", self.element(css) + "/click", {})

  def type(self, css, text):
    self.ask("POST", self.element(css) + "/value", {"text": text})

  def text(self, css):
    return self.run(f"return [...document.querySelectorAll({json.dumps(css)})].map((e) => e.textContent).join('|')")

  def complaints(self):
    return [entry["message"] for entry in self.ask("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

  def close(self):
    try:
      self.ask("DELETE", "")
    finally:
      self.process.terminate()
      self.process.wait()
      self.process.stdout.close()


@unittest.skipUnless(CHROMIUM and DRIVER, "no browser: chromium and chromedriver are not installed")
class Page(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    try:
      cls.browser = Browser()
    except Exception as error:  # of an installation, not of the page
      raise unittest.SkipTest(f"the browser does not start: {error}") from error
    cls.served = Served("--chat-template", "chatml", "--api-key", "secret")

  @classmethod
  def tearDownClass(cls):
    cls.browser.close()
    cls.served.kill()

  def until(self, condition):
    self.served.until(condition, 20)

  def open(self, key="secret"):
    b = self.browser
    b.open(self.served.url)
    self.until(lambda: "Settings has a field" in b.text("#about"))  # the server wants a key
    b.complaints()  # the browser's own words for that 401
    b.click("#settings summary")
    b.type("#key", key + "\t")
    if key == "secret":
      self.until(lambda: "hunch" in b.text("title") and "kv" in b.text("#about"))
    return b

  def idle(self):
    return self.browser.run("return at('stop').disabled")

  def test_a_message_is_answered_with_coloured_guesses_and_figures(self):
    b = self.open()
    self.assertEqual(b.text("#model option"), "wren-34m")
    b.run("at('tokens').value = 60; at('method').value = 'ngram'")
    b.type("#prompt", PROMPT + " " + "the sea, the sea, the sea,\n")  # Enter sends
    self.until(lambda: self.idle() and " tokens/s" in b.text(".foot"))
    self.assertEqual(b.text("h3"), "You|Model")
    body = {"messages": [{"role": "user", "content": PROMPT + " the sea, the sea, the sea,"}], "max_tokens": 60, "temperature": 0}
    answer = self.served.post("/v1/chat/completions", body, headers={"X-Api-Key": "secret"})[2]
    self.assertEqual(b.text(".turn:last-child .text"), answer["choices"][0]["message"]["content"])
    self.assertIn(f"{answer['usage']['completion_tokens']} tokens", b.text(".foot"))
    self.assertIn("per second", b.run("return at('speed').getAttribute('aria-label')"))
    if b.text("#legend"):
      self.assertEqual(b.text("#legend"), "accepted guesses of ngram")
      self.assertTrue(b.text(".turn .text .g0"))
    self.until(lambda: "tokens written" in b.text("#engine dt"))
    b.click("#clear")
    self.assertEqual(b.text(".turn"), "")
    self.assertEqual(b.complaints(), [])

  def test_stop_ends_an_answer_and_its_request(self):
    b = self.open()
    b.run("at('tokens').value = 1500; at('temperature').value = 0")
    # The page itself stops it: a click from here may come when a fast model has said everything.
    b.run("new MutationObserver((_, me) => { const said = document.querySelector('.turn:last-child .text');"
        "if (said && said.textContent.length > 20 && !at('stop').disabled)"
        "{ me.disconnect(); at('stop').click(); } }).observe(document.body, {childList: true, subtree: true,"
        "characterData: true})")
    b.type("#prompt", "Go on and on.\n")
    self.until(lambda: b.text(".wrong") == "stopped" and self.idle())
    self.assertEqual(b.text(".wrong"), "stopped")
    running = lambda: self.served.get("/metrics", headers={"X-Api-Key": "secret"})[2].decode()
    self.until(lambda: 'vllm:num_requests_running{model_name="wren-34m",engine="0"} 0\n' in running())

  def test_a_refusal_is_shown_where_the_answer_would_be(self):
    b = self.open()
    b.run("at('tokens').value = 100000")
    b.type("#prompt", "Hello\n")
    self.until(lambda: b.text(".wrong"))
    self.assertIn("max_tokens", b.text(".wrong"))


if __name__ == "__main__":
  unittest.main()
