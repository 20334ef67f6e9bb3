"""BLEU is refused, or takes other tokens, where those of European text mean nothing."""

import pytest
from sacrebleu.metrics import BLEU

from highrank_plugins.analysis.scored_text import bleu_tokens, require_joined
from highrank_plugins.analysis.statistics import paired_bleu
from highrank_plugins.common.text_lines import is_piece
from highrank_plugins.common.user_error import UserError
from highrank_plugins.results.scoring import score, tokenised_scores

PLAIN = ["the red hat of Ann, 日本 and ▁", *["we like the red hat"] * 300]
JAPANESE, KOREAN = "彼は新しい本を買った", "그는 새 책을 샀다"
WITHOUT_TOKENS = """เขาซื้อหนังสือเล่มใหม่ ລາວຊື້ປຶ້ມໃໝ່ သူစာအုပ်အသစ်ဝယ်ခဲ့တယ် គាត់បានទិញសៀវភៅថ្មី ꦲꦏ꧀ꦱꦫ ᬅᬓ᭄ᬱᬭ
    ꀀꀁꀂ 𗀀𗀁 vnutriúplnebezmedziernapísanéslová""".split()


@pytest.mark.parametrize(
    ("text", "installed", "tokens"),
    [
        *((text, False, "zh") for text in ("我们去公园 散步", "ㄅㄆㄇ", "⺀⺁")),
        *((JAPANESE, True, "ja-mecab"), (JAPANESE, False, None)),
        *((KOREAN, True, "ko-mecab"), (KOREAN, False, None)),
        *((text, True, None) for text in WITHOUT_TOKENS),
        *((text, False, "13a") for text in ("Он купил новую книгу.", "उसने एक नई किताब खरीदी")),
    ],
)
def test_tokens_suit_the_script(monkeypatch, text, installed, tokens):
    monkeypatch.setattr(
        "highrank_plugins.analysis.scored_text.find_spec", lambda name: installed or None
    )
    if tokens:
        assert bleu_tokens([text]) == tokens
    else:
        with pytest.raises(UserError, match="--bleu-tokens char"):
            bleu_tokens([text])
    assert bleu_tokens([text], "char") == "char"
    if tokens != "13a":
        with pytest.raises(UserError, match="of 13a tokens means nothing"):
            tokenised_scores([text], [text], "en")


def test_tokens_of_another_script_are_refused():
    for text, tokens in (("เขาซื้อหนังสือ", "zh"), (KOREAN, "zh"), ("我们去公园", "ja-mecab")):
        with pytest.raises(UserError, match=f"BLEU of {tokens} tokens means nothing; choose"):
            bleu_tokens([text], tokens)
    for tokens in ("zh", "ja-mecab", "ko-mecab"):
        with pytest.raises(UserError, match=f"^tokens {tokens} are made for another language"):
            bleu_tokens(["a dog sleeps", "the house of 东京"], tokens)
    texts = [["今天天气很好我们去公园散步"], ["今天天气很好我们去公园玩"]]
    expected = BLEU(tokenize="zh").corpus_score(texts[1], [texts[0]]).score
    found = score(texts[1], texts[0])["sacrebleu"]
    assert found.value == round(expected, 2) and "tok:zh" in found.signature
    paired = paired_bleu({"a": texts[1] * 9, "b": texts[0] * 9}, [texts[0] * 9], samples=10)
    assert paired["scores"][0]["score"] == pytest.approx(expected)


MARKED = ["▁the", "or@@", "##ange", "Ġthe", "the￭", "the</w>", "<0xE4>"]


def test_marks_that_are_text_are_scored_and_references_in_pieces_are_refused(caplog):
    assert [word for word in [*MARKED, "the", "a_b", "<unk>", "#1"] if is_piece(word)] == MARKED
    for line in (
        "Ġanni mar Malta",
        "Tom &amp; Ann",
        "##define X 1",
        "▁ ▂ ▃",
        "<unk> said",
        "_a or _b",
    ):
        text = [line] * 21 + ["an orange hat"] * 19
        require_joined(text, text)
        require_joined(["an egg"] * 27 + [f"_x _y {line}"] * 3, ["an egg"] * 30)  # no evidence
        assert not caplog.text, line
    for mark in ("▁the ▁or", "the or@@ ange", "the or ##ange", "the Ġor Ġa"):
        with pytest.raises(UserError, match="of the references have"):
            require_joined([mark] * 9, [mark] * 9)


@pytest.mark.parametrize(
    "line", ["▁the ▁or ange", "the or@@ ange", "or@@", "the or ##ange", "the Ġorange Ġhat",
             "or￭ ange", "rich @-@ text", "1 @.@ 5", "it &apos;s", "a &#91; b",
             "_the _or ange", "the￨D hat￨N", "<0xE4> b", "or@@ange hat", "t|h|e", "t | h", "a </s>",
             "<pad> a", "__en__ a", "-0.35\ta", "the <unk> of <unk>", "⁇ ⁇", "a Ċ", "theĠorĠhat"],
)  # fmt: skip
def test_text_that_nobody_joined_is_refused(line):
    for sides in (([line] * 9 + PLAIN, PLAIN + PLAIN[:9]), ([PLAIN[1]], [line])):
        with pytest.raises(UserError, match="--post-process"):
            require_joined(*sides)
    with pytest.raises(UserError, match="--post-process"):
        paired_bleu({"a": PLAIN[1:3], "b": [line, line]}, [PLAIN[1:3]])
    require_joined([line, *PLAIN], PLAIN + PLAIN[:1])  # one line of 300 may have it
    require_joined([f"{line} {n}" for n in range(4)], [line, line, "a", "b", "c"])


SENTENCES = [f"The dog {word} in the house, number {word}." for word in
             "sleeps runs eats sits waits barks plays looks rests stays jumps".split()]  # fmt: skip


def test_translations_in_other_units_are_refused_and_missing_text_is_said(caplog):
    letters = [" ".join(line.replace(" ", "")) for line in SENTENCES]
    for lines, said in (
        (letters, "join the characters into words"),
        *(([line.replace(" ", mark) for line in SENTENCES], "put the blanks back")
          for mark in ("", "\u200b", "|")),
        ([f"<en> {line}" for line in SENTENCES], "have '<en>'"),
        ([""] * len(SENTENCES), "all translations are empty"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=said):
            require_joined(lines, SENTENCES)
    require_joined(letters, letters)
    assert "the translations have 1.0 letters between blanks, the references 1.0;" in caplog.text
    caplog.clear()
    require_joined(SENTENCES, SENTENCES)
    require_joined(["我 们 去 公 园 散 步"] * 20, ["我 们 去 公 园 散 步"] * 20)
    assert caplog.text == ""
    require_joined(["a b c"] * 8 + ["", " "], ["a b c"] * 10)
    assert "have 80 % of the references' characters; 2 of 10 are empty" in caplog.text
    require_joined(["a"] * 10, ["a b c"] * 10)
    assert "have 33 % of the references' characters; 0 of 10 are empty" in caplog.text
