from kftrainer.machinery.metrics.bounded_labels import OTHER, BoundedLabels


def held(labels: BoundedLabels, value: str) -> str:
    label = labels.label(value)
    labels.hold(label)
    return label


def test_excess_labels_share_one_value() -> None:
    labels = BoundedLabels(2)
    assert [held(labels, value) for value in "abcadb"] == ["a", "b", OTHER, "a", OTHER, "b"]


def test_label_slot_is_reused_after_release() -> None:
    labels = BoundedLabels(1)
    for _ in range(2):
        held(labels, "a")
    labels.release("a")
    assert labels.label("b") == OTHER
    labels.release("a")
    assert held(labels, "b") == "b"
    assert held(labels, "a") == OTHER
    labels.release(OTHER)
    assert labels.label("b") == "b"
