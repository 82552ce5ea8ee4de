"""What a user could pick instead of this project, each as a contender of bench/contest.py."""
