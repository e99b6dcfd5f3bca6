"""The nouns: TrainJob, TrainingRuntime and their kin. No behaviour beyond defaults."""
