import torch
from torch import Tensor

from training.distillation import ConvTeacher, distillation_loss, soft_labels, train_teacher


def test_loss_is_the_divergence_written_out() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 5, 4, dtype=torch.float64)
    p, q = (teacher / 3).softmax(1), (student / 3).softmax(1)
    expected = sum(float(p[b, k] * (p[b, k] / q[b, k]).log()) for b in range(5) for k in range(4))
    loss = distillation_loss(student, teacher, temperature=3.0)
    assert abs(float(loss) - 9 * expected / 5) < 1e-10
    assert distillation_loss(teacher, teacher, temperature=3.0).abs() < 1e-12


def test_teacher_learns_and_repeats() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (256,), generator=random)
    noise = torch.randint(0, 100, (256, 1, 8, 8), generator=random)
    pixels = (noise + 100 * labels[:, None, None, None]).to(torch.uint8)

    def learn(epochs: int) -> Tensor:
        torch.manual_seed(0)
        teacher = ConvTeacher(1, 2)
        train_teacher(teacher, pixels, labels, epochs=epochs, seed=0)
        return soft_labels(teacher, pixels)

    assert torch.equal(learn(2), learn(2))
    outputs = learn(25)
    assert outputs.shape == (256, 2) and (outputs.argmax(1) == labels).float().mean() > 0.9


def test_soft_labels_do_not_change_under_mirroring() -> None:
    torch.manual_seed(0)
    teacher = ConvTeacher(3, 5)
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    labels = soft_labels(teacher, pixels)
    assert (labels - soft_labels(teacher, pixels.flip(-1))).abs().max() < 1e-5
