// Runs the tests in one process, and checks after each that it has restored the thread's state.
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Logging.h>

#include "testing.h"

namespace torchfake::testing {

class NothingLeftBehind final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    keys_ = c10::impl::tls_local_dispatch_key_set();
    multithreaded_ = c10::AutogradState::get_tls_state().get_multithreading_enabled();
  }

  void OnTestEnd(const ::testing::TestInfo& /*test*/) override {
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    EXPECT_TRUE(keys.included_ == keys_.included_) << "the thread's included keys changed";
    EXPECT_TRUE(keys.excluded_ == keys_.excluded_) << "the thread's excluded keys changed";
    EXPECT_EQ(c10::AutogradState::get_tls_state().get_multithreading_enabled(), multithreaded_);
    EXPECT_FALSE(InKernel::active()) << "the thread is still inside a kernel";
    EXPECT_EQ(current_mode(), nullptr) << "the thread is still in a mode";
  }

 private:
  c10::impl::LocalDispatchKeySet keys_ = c10::impl::tls_local_dispatch_key_set();
  bool multithreaded_ = true;
};

}  // namespace torchfake::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  c10::SetStackTraceFetcher([] { return std::string(); });  // Messages only: a backtrace per failure hides them.
  // Before the printer, so that its failures still count for the test.
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  auto* printer = listeners.Release(listeners.default_result_printer());
  listeners.Append(printer);
  listeners.Append(new torchfake::testing::NothingLeftBehind());
  return RUN_ALL_TESTS();
}
