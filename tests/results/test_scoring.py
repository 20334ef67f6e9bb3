"""Hypotheses come back complete, in the order of the input; BLEU of every kind by hand."""

import random

import pytest
from sacrebleu.metrics import BLEU

from highrank_plugins.analysis.scored_text import bleu_tokens, require_joined
from highrank_plugins.analysis.statistics import paired_bleu
from highrank_plugins.common.text_lines import is_piece
from highrank_plugins.common.user_error import UserError
from highrank_plugins.results import scoring
from highrank_plugins.results.scoring import read_hypotheses, read_lines, score, tokenised_scores


def generated(tmp_path, numbers, text="Satz"):
    path = tmp_path / "test.txt"
    lines = []
    for n in numbers:
        lines += [f"S-{n}\tquelle {n}", f"T-{n}\tziel", f"H-{n}\t-0.5\t▁{text}"]
        lines += [f"D-{n}\t-0.5\t{text} {n}", f"P-{n}\t-0.1"]
    lines.append("Generate test with beam=5: BLEU4 = 1.00")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_hypotheses_are_read_in_the_order_of_the_inputs(tmp_path, caplog):
    for count in (1, 1014):
        path = generated(tmp_path, random.Random(count).sample(range(count), count))
        assert read_hypotheses(path, count) == [f"Satz {n}" for n in range(count)]
    assert not caplog.text
    path.write_text("INFO | {'beam': 5, 'prefix_size': 2}\nD-0\t-1.0\t\n")
    assert read_hypotheses(path, 1) == [""]
    assert "--prefix-size" in caplog.text and "their score is too high" in caplog.text


@pytest.mark.parametrize(("numbers", "message"), [
    ([0, 2, 3], r"3 hypotheses for 4 inputs; the first input without one is line 2"),
    ([0, 1, 2, 3, 4], r"5 hypotheses for 4 inputs"),
    ([0, 1, 2, 2, 3], r"several hypotheses D-2; generate with --nbest 1"),
    ([], r"1 lines for 4 inputs, and no line of fairseq-generate"),
    ([0, 1, 2, 3], r"the last line is cut"),
])  # fmt: skip
def test_missing_repeated_or_cut_hypotheses_are_errors(tmp_path, numbers, message):
    path = generated(tmp_path, numbers)
    if "cut" in message:
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"Satz 3\n")])
    with pytest.raises(ValueError, match=message):
        read_hypotheses(path, 4)


def test_only_line_feeds_end_lines(tmp_path):
    text = "a\u2028b\u0085c\x0cd"
    assert read_hypotheses(generated(tmp_path, [0], text), 1) == [f"{text} 0"]
    path = tmp_path / "reference"
    path.write_text(f"{text}\nlast", encoding="utf-8")
    assert read_lines(path) == [text, "last"]
    path.write_bytes(b"\xef\xbb\xbfa b\rc d\r\nlast\r\n")
    assert read_lines(path) == ["a b\rc d", "last"]


def test_scores_have_signatures():
    references = ["Der Hund läuft schnell.", "Die Katze schläft."]
    perfect = score(references, references)
    assert perfect["sacrebleu"].value == perfect["chrf"].value == 100
    assert {"tok:13a", "case:mixed"} <= {*perfect["sacrebleu"].signature.split("|")}
    assert score([r.lower() for r in references], references)["sacrebleu"].value < 100
    for hypotheses, other in ((["a"], references), ([], [])):
        with pytest.raises(ValueError, match="numbers must match and be at least 1"):
            score(hypotheses, other)


def test_tokenised_bleu_equals_the_value_computed_by_hand_and_splitting_gives_credit_for_parts():
    # n-grams of 7 and 4 tokens; the one wrong token is in 1, 2, 2 and 2 of them
    texts = ["a x c d e f .", "g h i j"], ["a b c d e f .", "g h i j"]
    scores = scoring.tokenised_scores(*texts, "en")
    expected = (10 / 11 * 7 / 9 * 5 / 7 * 3 / 5) ** 0.25 * 100
    assert scores["bleu_tokenised"].value == pytest.approx(expected, abs=0.01)
    assert scoring.split_compounds("die Nord-Süd-Linie - gut") == (
        "die Nord ##AT##-##AT## Süd ##AT##-##AT## Linie - gut"
    )
    # what perl -ple 's{(\S)-(\S)}{$1 ##AT##-##AT## $2}g' prints
    assert scoring.split_compounds("Ex-U-Boot") == "Ex ##AT##-##AT## U-Boot"
    sides = ([f"Eine Nord-Süd-{word} fährt hier sehr oft."] for word in ("Bahn", "Linie"))
    scores = scoring.tokenised_scores(*sides, "de", compound_split=True)
    plain, split = scores["bleu_tokenised"], scores["bleu_compound_split"]
    assert 0 < plain.value < split.value < 100
    assert "tok:none|smooth:none" in plain.signature
    assert plain.signature.endswith("-de") and split.signature.endswith("-de|compounds:split")


# -- BLEU is refused, or takes other tokens, where those of European text mean nothing --

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
