"""The flags of a report: what became of every single sample."""

from robustness.catalog import AttackName, Norm, Variant
from robustness.report.figures import Part


class CleanFlags(Part):
    """One model on one unchanged sample; `probability` is None where logits are not finite."""

    index: int
    probability: float | None
    correct: bool


class AttackFlags(Part):
    """One model on one sample under one attack at one point.

    `robust`, `confirmed` and `confirmed_8bit` are True where the model held, so that their means
    are the accuracies; texts know no 8 bit. `part` is the attack that made the input shown (itself
    or one of AutoAttack's four) and `variant` its gradients; `adversarial_index` is what the served
    model says to it, `margin` the logit of the label minus the largest other one (None where not
    finite), `distance` how far it was moved in the attack's norm (for texts: edits). `gradients`
    says for each way of taking gradients whether the model held, where there are two.
    """

    name: AttackName
    norm: Norm | None
    eps: str
    eps_value: float
    adversarial_index: int
    part: AttackName
    variant: Variant
    margin: float | None
    distance: float
    robust: bool
    confirmed: bool
    confirmed_8bit: bool | None
    gradients: dict[Variant, bool] | None


class CorruptionFlags(Part):
    """One model on one image under one common corruption."""

    name: str
    severity: int
    index: int
    correct: bool


class CertificateFlags(Part):
    """What is certain about one image with one sigma; `index` None where smoothing abstained."""

    sigma: str
    index: int | None
    radius: float
    correct: bool


class ModelFlags(Part):
    """One model on one sample.

    `minimal` is, by norm, the distance to the nearest adversarial input that was found at any
    radius; None where none was.
    """

    name: str
    clean: CleanFlags
    attacks: list[AttackFlags]
    corruptions: list[CorruptionFlags]
    certificates: list[CertificateFlags]
    minimal: dict[Norm, float | None]


class Sample(Part):
    """One sample; `label` is None where none was given."""

    index: int
    name: str
    label: int | None
    models: list[ModelFlags]
