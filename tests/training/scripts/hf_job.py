"""The Trainer of Hugging Face as people use it, with nothing for being preempted."""

import torch
from made_up import Sums, maybe_stop, network, used, write_weights
from transformers import Trainer, TrainingArguments, set_seed


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x, labels, number):
        if self.training:
            used(number)
        out = self.net(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Stopped(Trainer):
    def training_step(self, *given, **more):
        maybe_stop(self.state.global_step)
        return super().training_step(*given, **more)


set_seed(3)
arguments = TrainingArguments(
    output_dir="out",
    num_train_epochs=3,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=0.05,
    logging_steps=5,
    eval_strategy="epoch",
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    remove_unused_columns=False,
    disable_tqdm=True,
)
model = Net()
trainer = Stopped(model=model, args=arguments, train_dataset=Sums(noise=0.0), eval_dataset=Sums(8, 0.0))
trained = trainer.train()
write_weights(model)
with open("weights.txt", "a") as file:
    print(repr(trained.training_loss), file=file)
