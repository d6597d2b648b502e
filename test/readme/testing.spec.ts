// The example of docs/testing.md, which is a test itself.
import { afterEach, beforeEach, describe, expect, it, jest } from '@jest/globals';
// #region unit-test
import { Test, type TestingModule } from '@nestjs/testing';
import { getRepositoryToken } from '@nestjs/typeorm';
import { LeaseLostError, StaleGenerationError } from 'nestjs-fencing';
import { FencingFaults, FencingTestingModule, ManualClock } from 'nestjs-fencing/testing';
import { Report, ReportsService } from './reports.js';

describe('ReportsService', () => {
  const clock = new ManualClock();
  const repository = { save: jest.fn() };
  let module: TestingModule, reports: ReportsService, faults: FencingFaults;

  beforeEach(async () => {
    repository.save.mockClear();
    module = await Test.createTestingModule({
      imports: [FencingTestingModule.forRoot({ clock })],
      providers: [ReportsService, { provide: getRepositoryToken(Report), useValue: repository }],
    }).compile();
    await module.init();
    reports = module.get(ReportsService);
    faults = module.get(FencingFaults);
  });

  afterEach(() => module.close());

  it('publishes what it has read', async () => {
    await reports.rebuild('alice');
    expect(repository.save).toHaveBeenCalledWith({ customerId: 'alice', total: 5 });
  });

  it('does not publish when a newer rebuild has begun meanwhile', async () => {
    jest.spyOn(reports, 'readLedger').mockImplementation(() => faults.steal('report:alice'));
    await expect(reports.rebuild('alice')).rejects.toThrow(StaleGenerationError);
    expect(repository.save).not.toHaveBeenCalled();
  });

  it('does not publish when Redis was silent for longer than the ttl', async () => {
    jest.spyOn(reports, 'readLedger').mockImplementation(async () => {
      faults.freeze();
      await clock.advance(30_000);
      return 1;
    });
    await expect(reports.rebuild('alice')).rejects.toThrow(LeaseLostError);
    expect(repository.save).not.toHaveBeenCalled();
  });
});
// #endregion
